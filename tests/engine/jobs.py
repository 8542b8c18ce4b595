"""Jobs over the shards of datasets."""

from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.steps import Job
from gdsload.shards.shard_table import ShardTable


def job_over(dataset, steps, fields, *, mapped=False, **options):
    """A job of some steps, and the form of its batches of some fields."""
    table = ShardTable.of(dataset.sources, dataset.stored, mapped=mapped)
    return Job(table, steps, **options), BatchForm(codecs_of(dataset.stored, fields, "offsets"))
