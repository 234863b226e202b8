from pathlib import Path

from stage import write_numbers

from fkat_data.streaming import StreamingDataset

write_numbers("data", 1024)
write_numbers("more", 1024)
Path("run.yaml").write_text(
    "dataset:\n  _target_: fkat_data.streaming.StreamingDataset\n  local: data\n  batch_size: 32\n  shuffle: true\n"
    "  shuffle_algo: block\n"
)
