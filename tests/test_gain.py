import json

import numpy as np
import pytest
from typer.testing import CliRunner

import personafl as pf
from personafl import theory
from personafl.cli import app
from personafl.errors import RunError
from personafl.gain import ALONE, GIVES, PROFITS, UNKNOWN, gains, plot, sentence


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Clients of the two-level Gaussian model, so that theory knows the answer; one is never active often enough."""
    federation = pf.data.build(pf.data.Gaussian(clients=12, sigma0_2=0.5, n_min=5, n_max=100), seed=3)
    from torch import nn

    return pf.train(
        federation, nn.Linear(1, 1, bias=False), pf.SelfFL(posterior="exact", variance="mean", scope="all"),
        rounds=6, activity=0.4, local=pf.Local(lr=0.05, batch_size=5, steps=5), seed=1,
        out=tmp_path_factory.mktemp("run") / "selffl", progress=False,
    )  # fmt: skip


def test_gain_is_the_theorys_formula_on_the_estimated_variances(run):
    table = run.clients()
    known = np.array([value is not None and np.isfinite(value) for value in table.column("gain").to_pylist()])
    assert 2 < known.sum() < 12
    sigma2 = np.array(table.column("sigma2").to_pylist(), float)[known]
    sigma0_2 = float(np.array(table.column("sigma0_2").to_pylist(), float)[known][0])
    expected = theory.gain(sigma2, sigma0_2, posterior="exact")
    np.testing.assert_allclose(np.array(table.column("gain").to_pylist(), float)[known], expected, rtol=1e-4)


def test_clients_are_sorted_into_those_who_profit_give_or_need_not_join(run):
    found = gains(run, threshold=float(np.nanmedian(gains(run).gain)))
    for verdict, gain, weight in zip(found.verdict, found.gain, found.weight, strict=True):
        if not np.isfinite(gain):
            assert verdict == UNKNOWN
        elif verdict == PROFITS:
            assert gain >= np.nanmedian(found.gain)
        else:
            assert verdict == (GIVES if weight > np.nanmedian(found.weight) else ALONE)
    assert found.count(PROFITS) >= 1
    assert f"{found.count(PROFITS)} of 12 clients profit" in sentence(found, 1.1)
    assert f"{found.count(UNKNOWN)} were active too seldom" in sentence(found, 1.1)


def test_the_command_prints_a_table_and_draws_a_plot(run, tmp_path):
    picture = tmp_path / "gain.png"
    done = CliRunner().invoke(app, ["gain", str(run.path), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert "GAIN" in done.output and "of 12 clients profit" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(CliRunner().invoke(app, ["gain", str(run.path), "--json"]).stdout)
    assert len(rows) == 12 and {row["verdict"] for row in rows} <= {PROFITS, GIVES, ALONE, UNKNOWN}


def test_a_run_without_uncertainty_has_no_gain(tmp_path):
    from torch import nn

    federation = pf.data.build(pf.data.Gaussian(clients=3))
    other = pf.train(federation, nn.Linear(1, 1, bias=False), rounds=1, out=tmp_path / "run", progress=False)
    with pytest.raises(RunError, match="fedavg, which does not estimate GAIN"):
        gains(other)


def test_a_plot_without_any_known_client_is_still_a_plot(tmp_path):
    from torch import nn

    federation = pf.data.build(pf.data.Gaussian(clients=3))
    fresh = pf.train(
        federation, nn.Linear(1, 1, bias=False), pf.SelfFL(), rounds=1, out=tmp_path / "run", progress=False
    )
    found = gains(fresh)
    assert set(found.verdict) == {UNKNOWN}
    assert "train for more rounds" in sentence(found, 1.1)
    plot(found, tmp_path / "gain.png")
    assert (tmp_path / "gain.png").stat().st_size > 1000
