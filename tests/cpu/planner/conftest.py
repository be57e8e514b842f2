import pytest


@pytest.fixture(scope="session")
def planning_pool(pool):
    return pool
