from pathlib import Path

from stage import write_numbers

write_numbers("data")
Path("run.yaml").write_text(
    "dataset:\n  _target_: fkat_data.streaming.StreamingDataset\n  local: data\n  batch_size: 4\n  shuffle: true\n"
    "  shuffle_algo: block\n"
)
