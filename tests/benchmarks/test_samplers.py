"""The comparison of samplers runs."""

from benchmarks import samplers


def test_it_prints_a_line_for_each_sampler(capsys):
    assert samplers.main(["--samples", "300", "--row-bytes", "16", "--batch-size", "64", "--rounds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("RandomSampler ", "WeightedRandomSampler ", "DistributedSampler ", "BatchSampler ", "a tensor "):
        (line,) = (line for line in lines if line.startswith(name))
        assert "to the slower:" in line
