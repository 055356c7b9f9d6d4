"""Why a deployment costs what it costs: its ledger, the identity that the cost obeys, and who owns the excess."""
