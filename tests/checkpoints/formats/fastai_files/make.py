"""A tiny language model and classifier as fastai writes them, with what fastai computes of them.

    PYTHONPATH=<fastai 2.7> python tests/checkpoints/formats/fastai_files/make.py

writes lstm_tiny.pth, itos_tiny.pkl and expected.safetensors beside it.
"""

from pathlib import Path

import torch
from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_clas_config, awd_lstm_lm_config
from fastai.text.models.core import get_language_model, get_text_classifier
from safetensors.torch import save_file

HERE = Path(__file__).parent
WORDS = ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", *(f"w{n}" for n in range(16))]
SIZES = {"emb_sz": 6, "n_hid": 10, "n_layers": 3}

torch.manual_seed(3)
model = get_language_model(AWD_LSTM, len(WORDS), awd_lstm_lm_config | SIZES).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.4)
ids = torch.randint(5, len(WORDS), (3, 7))
model.reset()
first, raw, dropped = model(ids[:, :4])
second, _, _ = model(ids[:, 4:])  # the state goes on
torch.save(model.state_dict(), HERE / "lstm_tiny.pth")
import pickle  # noqa: E402

(HERE / "itos_tiny.pkl").write_bytes(pickle.dumps(WORDS))

whole = get_text_classifier(AWD_LSTM, len(WORDS), 2, config=awd_lstm_clas_config | SIZES).eval()
whole[0].module.load_state_dict(model[0].state_dict())
for parameter in whole[1].parameters():
    torch.nn.init.normal_(parameter, std=0.5)
for norm in (whole[1].layers[0][0], whole[1].layers[1][0]):
    torch.nn.init.normal_(norm.running_mean, std=0.3)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2)
lengths = torch.tensor([7, 4, 2])
padded = torch.where(torch.arange(7) < lengths[:, None], ids, 1)
whole.reset()
scores = whole(padded)[0]
head = {f"head.{name}": one.detach().contiguous() for name, one in whole[1].state_dict().items()}
save_file(
    {
        "ids": ids, "logits": torch.cat([first, second], 1).detach().contiguous(),
        "lengths": lengths, "scores": scores.detach().contiguous(), **head,
    },
    HERE / "expected.safetensors",
)  # fmt: skip
print([name for name in whole[1].state_dict()])
