"""What a graph and a program print."""

from ipu_core.graph import (
    Call,
    Codelet,
    Copy,
    DataStream,
    Execute,
    Graph,
    If,
    Input,
    Output,
    RemoteBuffer,
    RemoteLoad,
    RemoteStore,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamCopy,
    Switch,
    Sync,
    program_text,
)


class Move(Codelet):
    x = Input(ndim=1)
    y = Output(ndim=1)


def test_graph_and_program_in_words() -> None:
    graph = Graph()
    x = graph.add_variable("float16", (4, 2), "x")
    y = graph.add_variable("float16", (4, 2), "y", temporary=True)
    n = graph.add_variable("int32", (), "n")
    graph.map_linearly(x, 4)
    graph.set_tile_mapping(n, 3)
    cs = graph.add_compute_set("move")
    graph.add_vertices(cs, Move, [0, 0, 1, 2], {"x": x, "y": y})
    graph.add_vertex(cs, Move, 9)
    assert str(graph).splitlines() == [
        "variable x:float16[4,2]: 16 bytes, 4 tiles from 0",
        "temporary y:float16[4,2]: 16 bytes, y: 8 of 8 elements are mapped to no tile, the first is element 0",
        "variable n:int32[]: 4 bytes, 1 tiles from 3",
        "compute set move",
        "  4 x Move on 3 tiles: x = x[2], y = y[2]",
        "  Move on tile 9",
    ]
    step, buffer = Execute(cs), RemoteBuffer("far", "float16", (4, 2), 2)
    program = Sequence(
        StreamCopy(DataStream("in", "float16", (4, 2)), x),
        Repeat(3, Sequence(step, Sync())),
        If(n, Call(step, "f")),
        Switch(n, {7: Copy(x, y)}),
        RepeatWhile(step, n, RemoteLoad(buffer, x, n)),
        RemoteStore(x, buffer, 1),
    )
    view = "[offset 0, shape (4, 2), strides (2, 1)]"
    assert program_text(program).splitlines() == [
        "Sequence",
        f"  StreamCopy stream in -> x{view}",
        "  Repeat 3 times",
        "    Sequence",
        "      Execute move",
        "      Sync",
        "  If n",
        "    then",
        "      Call f",
        "        Execute move",
        "    else",
        "      Sequence",
        "  Switch n",
        "    case 7",
        f"      Copy x{view} -> y{view}",
        "    default",
        "      Sequence",
        "  RepeatWhile n",
        "    condition",
        "      Execute move",
        "    body",
        f"      RemoteLoad far[n] -> x{view}",
        f"  RemoteStore x{view} -> far[1]",
    ]
