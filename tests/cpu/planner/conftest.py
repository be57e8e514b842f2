import pytest

from snugfit.workers.pool import Pool


@pytest.fixture(scope="session")
def planning_pool():
    pool = Pool()
    yield pool
    pool.close()
