"""The process through which the ranks find each other; it ends with them.

python -m dimred.launch.scheduler     (with the environment that msrun gives its scheduler)
"""

from mindspore import communication

if __name__ == "__main__":
    communication.init()
