from hypothesis import given
from hypothesis import strategies as st

from infer_diag.attribution.intervals import Layer, Span, measure, sweep, uncovered, union

spans = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 30)).map(lambda pair: Span(pair[0], pair[0] + pair[1])))


def points(found: list[Span]) -> set[int]:
    return {point for span in found for point in range(span.begin, span.end)}


def test_union_joins_what_touches_and_drops_what_is_empty() -> None:
    assert union([Span(5, 9), Span(0, 3), Span(3, 4), Span(7, 7)]) == [Span(0, 4), Span(5, 9)]


def test_measure_counts_workers_in_parallel_once() -> None:
    loads = [Span(0, 22), Span(0, 24), Span(0, 23), Span(1, 41)]
    assert measure(loads) == 41


@given(spans)
def test_union_covers_the_same_points(found: list[Span]) -> None:
    assert points(union(found)) == points(found)
    assert measure(found) == len(points(found))


@given(spans)
def test_uncovered_is_the_complement(found: list[Span]) -> None:
    whole = Span(-20, 40)
    assert points(uncovered(whole, found)) == points([whole]) - points(found)


def test_sweep_gives_a_moment_to_the_deepest_layer() -> None:
    layers = [Layer("load", 1, [Span(0, 10)]), Layer("read", 2, [Span(3, 6)])]
    assert [(piece.begin, piece.end, piece.name) for piece in sweep(Span(0, 12), layers)] == [
        (0, 3, "load"),
        (3, 6, "read"),
        (6, 10, "load"),
        (10, 12, None),
    ]


def test_a_container_encloses_a_gap_and_explains_nothing() -> None:
    layers = [Layer("init", 1, [Span(2, 9)], explains=False), Layer("capture", 2, [Span(5, 9)])]
    assert [(piece.name, piece.enclosing) for piece in sweep(Span(0, 9), layers)] == [
        (None, None),
        (None, "init"),
        ("capture", None),
    ]


def test_a_cut_splits_a_gap_and_no_phase() -> None:
    layers = [Layer("load", 1, [Span(0, 4)])]
    assert [(piece.begin, piece.end) for piece in sweep(Span(0, 8), layers, cuts=[2, 6])] == [(0, 4), (4, 6), (6, 8)]


layer_lists = st.lists(st.builds(Layer, st.sampled_from("abcdef"), st.integers(1, 3), spans, st.booleans()), max_size=5)


@given(layer_lists, st.lists(st.integers(-60, 60), max_size=4))
def test_pieces_add_up_and_each_owner_is_active(layers: list[Layer], cuts: list[int]) -> None:
    whole = Span(-40, 45)
    pieces = sweep(whole, layers, cuts)
    assert [piece.begin for piece in pieces] == [whole.begin, *[piece.end for piece in pieces[:-1]]]
    assert pieces[-1].end == whole.end
    explained = points([span for layer in layers if layer.explains for span in layer.spans]) & points([whole])
    assert points([Span(piece.begin, piece.end) for piece in pieces if piece.name is not None]) == explained
    for piece in pieces:
        owners = [layer for layer in layers if layer.explains and layer.name == piece.name]
        if piece.name is not None:
            assert points([Span(piece.begin, piece.end)]) <= points([span for layer in owners for span in layer.spans])
