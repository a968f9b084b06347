from tests.cuda_on_cpu import emulator
def test_x():
    assert emulator.order
