import numpy as np

from fkat_data.streaming import MDSWriter

with MDSWriter(columns={"tokens": "ndarray:uint16:1024", "text": "str"}, out="data/train") as writer:
    for number in range(100):
        writer.write({"tokens": np.full(1024, number, np.uint16), "text": "a"})
