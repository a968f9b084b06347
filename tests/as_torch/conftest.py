import pytest
from as_torch.child import Child


@pytest.fixture(scope="session")
def run_aliased():
    """Run a program in a process whose `torch` is ampkit -> the lines that it prints."""
    child = Child()
    yield child
    child.end()
