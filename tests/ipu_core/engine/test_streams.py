"""Data that come and go while a program runs: streams, remote buffers, transfers beside programs."""

import math
import pickle

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine import Engine, Profile
from ipu_core.errors import OutOfStreamingMemory
from ipu_core.graph import (
    Copy,
    DataStream,
    Graph,
    Overlap,
    Program,
    RemoteBuffer,
    RemoteLoad,
    RemoteStore,
    Repeat,
    Sequence,
    StreamCopy,
    program_text,
)
from ipu_core.library.elementwise import map_array
from tests.ipu_core.engine.codelets import on_tile_0


def test_streams_both_ways() -> None:
    graph = Graph("gc200")
    x = on_tile_0(graph, "float16", (1000,), "x")
    down, up = DataStream("down", "float16", (1000,)), DataStream("up", "float16", (1000,), to_device=False)
    engine = Engine(graph, Sequence(StreamCopy(down, x), StreamCopy(up, x)))
    with pytest.raises(ValueError, match="'down' is not connected"):
        engine.run()
    sent: list[np.ndarray] = []
    engine.connect(up, sent.append)
    engine.connect(down, iter([np.full(1000, 0.1), np.full(1000, 2.0, np.float16)]))
    engine.run()
    engine.run()
    assert [values[3] for values in sent] == [np.float16(0.1), 2.0]
    with pytest.raises(EOFError, match="no more transfers"):
        engine.run()
    engine.connect(down, lambda: np.zeros(7))
    with pytest.raises(ValueError, match=r"shape \(1000,\), not \(7,\)"):
        engine.run()
    down_step, up_step = engine.profile().steps
    for step in (down_step, up_step):
        assert step.account.exchange_cycles == 2000 * 1.325e9 / 3.125e9 == 848  # a quarter of 100 Gb/s each way
        assert step.kind == "stream"
    time = 2 * (848 + 90) / 1.325e3
    assert (
        f"host: 2,000 bytes from it and 2,000 to it, {time:.2f} us at 3.125 GB/s each way, its machine's share, sync "
        "included" in str(engine.profile())
    )
    assert "streaming memory: " not in str(engine.profile())


@pytest.mark.parametrize(
    ("figures", "cycles", "words"),
    [
        ({}, 848, "3.125 GB/s each way, its machine's share"),
        ({"host_share": 64e9}, 100 + 2000 // 4, "32 GB/s each way, all that the chip's port can do"),  # the exchange
        ({"host_port": 1e9}, 2650, "1 GB/s each way, all that the chip's port can do"),
    ],
)
def test_a_stream_takes_the_smaller_of_port_and_share(figures: dict[str, float], cycles: int, words: str) -> None:
    graph = Graph(Target("gc200", **figures))
    x = on_tile_0(graph, "float16", (1000,), "x")
    profile = Engine(graph, StreamCopy(DataStream("down", "float16", (1000,)), x)).profile()
    assert profile.steps[0].account.exchange_cycles == cycles
    assert f" us at {words}, sync included" in str(profile)
    assert "host: " not in str(Engine(graph, Copy(x, on_tile_0(graph, "float16", (1000,), "y"))).profile())


@pytest.mark.parametrize(
    ("chip", "figures", "rate", "words"),
    [
        ("gc200", {}, 5e9, "5 GB/s, its machine's share"),
        ("bow", {"host_port": 2e9}, 2e9, "2 GB/s, all that the chip's port can do"),
        ("gc2", {}, 16e9, "16 GB/s, its machine's share"),
        ("c600", {}, 32e9, "32 GB/s, all that the chip's port can do"),
    ],
)
def test_a_transfer_takes_the_smaller_of_port_and_share(
    chip: str, figures: dict[str, float], rate: float, words: str
) -> None:
    target = Target(chip, **figures)
    graph = Graph(target)
    x = map_array(graph.target, graph.add_variable("float32", (100_000,), "x"))
    (step,) = (profile := Engine(graph, RemoteStore(x, RemoteBuffer("far", "float32", (100_000,)))).profile()).steps
    assert step.account.exchange_cycles == math.ceil(400_000 * target.clock / rate)
    assert f" us at {words}, 90 cycles of sync included" in str(profile)


def test_remote_buffers() -> None:
    graph = Graph()
    x = on_tile_0(graph, "float32", (4, 2), "x")
    entry = on_tile_0(graph, "int32", (), "entry")
    buffer = RemoteBuffer("moments", "float32", (4, 2), entries=3)
    engine = Engine(graph, [RemoteLoad(buffer, x, entry), RemoteStore(x, buffer, 2)])
    engine.write_remote(buffer, 1, np.arange(8).reshape(4, 2))
    engine.write(entry, 1)
    engine.run(0)
    engine.run(1)
    assert engine.read_remote(buffer, 2).tolist() == engine.read(x).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    engine.write(entry, 3)
    with pytest.raises(IndexError, match=r"entries 0\.\.2, not 3"):
        engine.run(0)
    with pytest.raises(ValueError, match="entry 3 is outside"):
        RemoteStore(x, buffer, 3)
    assert buffer.nbytes == 96


def test_remote_buffers_beyond_streaming_memory_are_refused() -> None:
    graph = Graph()
    x = on_tile_0(graph, "float32", (1000,), "x")
    small, large = RemoteBuffer("small", "float32", (1000,)), RemoteBuffer("large", "float32", (1000,), 8_000_000)
    Engine(graph, RemoteStore(x, large, 7))
    program = Sequence(RemoteLoad(large, x, 7), RemoteStore(x, large, 8), RemoteStore(x, small))
    words = "need 32,000,004,000 bytes of 32,000,000,000 of streaming memory; the largest: large 32,000,000,000, small"
    with pytest.raises(OutOfStreamingMemory, match=words) as caught:
        Engine(graph, program)
    assert pickle.loads(pickle.dumps(caught.value)).buffers == [("large", 32_000_000_000), ("small", 4000)]
    memory = Engine(graph, program, allow_out_of_memory=True).memory
    assert (memory.remote, memory.remote_available) == (32_000_004_000, 32_000_000_000)
    assert memory.unstreamed[0] == memory.peak[0] + 32_000_004_000
    most = Graph(Target("gc200", streaming_memory=130_600_000_000))  # the largest sold
    Engine(most, RemoteStore(on_tile_0(most, "float32", (1000,), "x"), large, 7))
    Engine(Graph(Target("gc2")), Sequence())  # whose streaming memory is the host's, without a figure


def test_transfers_beside_programs_take_the_time_these_leave() -> None:
    graph = Graph(Target("gc200", tiles=2, streaming_share=2e8))
    a, b, c, d, e = (on_tile_0(graph, "float32", (500,), name) for name in "abcde")
    far = [RemoteBuffer(name, "float32", (500,)) for name in ("x", "y", "z")]
    copy, use = Copy(a, b, "work"), Copy(c, e, "use")
    load, store = RemoteLoad(far[0], c), RemoteStore(d, far[1])

    def run(program: Program) -> Profile:
        engine = Engine(graph, program)
        engine.write_remote(far[0], 0, np.arange(500))
        engine.write(a, np.ones(500))
        engine.write(d, np.full(500, 7))
        engine.run()
        assert engine.read(b).tolist() == [1] * 500
        assert engine.read(e).tolist() == list(range(500))
        assert engine.read_remote(far[1], 0).tolist() == [7] * 500
        return engine.profile()

    work, moved, _, used = (step.cycles for step in run(Sequence(copy, load, store, use)).steps)
    assert 10 * work < moved < 50 * work
    for count in (10, 50, 70):  # what uses the load waits for it, not for the store, which the end waits for
        profile = run(Overlap(load, store, Repeat(count, copy), use))
        assert profile.cycles == max(max(count * work, moved) + used, 2 * moved)
        assert profile.streaming_cycles == 2 * moved
        assert profile.hidden_cycles == min(max(count * work, moved) + used, 2 * moved) - max(0, moved - count * work)
        during = next(step for step in profile.steps if step.name == "work").account.memory["transfers"]
        assert during.tolist() == [2000 if count * work <= moved else 4000, 0]
    # A store stands in the way of the load behind it, and of what writes its tensor; of what reads it does not.
    assert run(Overlap(store, load, use, Repeat(20, copy))).cycles == 2 * moved + used + 20 * work
    wait = run(Overlap(load, use, store, Copy(b, d, "write"), copy)).cycles
    assert wait == 2 * moved + used + 2 * work
    assert run(Overlap(load, use, store, Copy(d, b, "read"), copy)).cycles == 2 * moved + used
    # What uses streaming memory inside has the channel to itself.
    inside = Repeat(1, RemoteStore(a, far[2]))
    assert run(Overlap(load, store, use, inside, copy)).cycles == 3 * moved + work
    assert "Overlap" in program_text(Overlap(load, copy))
    with pytest.raises(TypeError, match="is no program"):
        Overlap("work")  # type: ignore[arg-type]


def test_a_tensor_lives_while_it_passes_beside_programs() -> None:
    """From when its load begins, not from where it stands; and until its store has ended."""
    graph = Graph(Target("gc200", tiles=1, streaming_share=2e8))
    a, b = (on_tile_0(graph, "float32", (500,), name) for name in "ab")
    c, d = (map_array(graph.target, graph.add_variable("float32", (500,), name, temporary=True)) for name in "cd")
    far = [RemoteBuffer(name, "float32", (500,)) for name in "xyz"]
    steps = [Copy(a, b, f"work {number}") for number in range(60)]
    program = Overlap(
        RemoteLoad(far[0], c), RemoteLoad(far[1], d), *steps, Copy(c, a, "use"), RemoteStore(d, far[2]), *steps
    )
    profile = Engine(graph, program).profile()
    live = {point.step: point.total for point in profile.memory.lifetimes}
    always = profile.memory.always_bytes
    assert live["work 0"] == always + 2000 + 2000  # c comes, through exchange buffers
    names = [point.step for point in profile.memory.lifetimes]
    assert names.index("load y") > names.index("work 20")
    assert names.index("store z") > len(names) - 55
