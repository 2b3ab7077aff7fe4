import json

from typer.testing import CliRunner

from personafl.bench import tables
from personafl.cli import app


def test_bench_prints_json_alone_and_its_references_compute_the_same():
    """The command itself compares the results of the references with the engine's, and fails if they differ."""
    done = CliRunner().invoke(app, ["bench", "--repeat", "1", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert [result["job"] for result in results] == ["small", "mnist"]
    for result in results:
        assert result["stacked_over_hand"] > 0 and result["loop_over_stacked"] > 0
        assert 0 < result["runner_overhead"] < 1
        assert set(result["milliseconds"]) >= {
            "hand-written batched",
            "tight python loop",
            "stacked engine",
            "loop engine",
        }
    assert len(tables(results)) == 2
