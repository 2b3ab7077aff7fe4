"""A tiny BERT of our own with its tokenizer, as save_pretrained writes it."""

import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "day", "night"]


def write_bert(folder, seed=0, width=8):
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=width, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=12).save_pretrained(folder)
    return folder
