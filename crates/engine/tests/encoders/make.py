"""Makes small random encoders of every architecture and their golden embeddings, with transformers, sentence-transformers and
model2vec in double precision.

    python make.py [FOLDER]

Every directory has `golden.json`: texts, token ids, and embeddings of the texts as documents and as queries. `make encoder-goldens`
runs it in an environment of its own, into a temporary folder, and compares the engine with what the installed packages compute.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram, WordPiece

HIDDEN, INNER, HEADS, LAYERS = 32, 48, 2, 3

CORPUS = [
    "The price of crude oil rises as OPEC cuts output.",
    "Wheat and corn: a drought ruins the harvest of the year.",
    "Der Hafen streikt, das Schiff bleibt liegen. Überall fehlt Öl.",
    "Le café coûte 3,50 euros; l'été sera long.",
    "日本の石油価格が上がる。",
    "A bank raises its interest rate by 0.25 points, said the chairman (again).",
]
TEXTS = CORPUS + [
    "",
    "oil",
    "  Two  spaces,\ttabs and\nlines ",
    "unseen: żółć 🦀 Ω",
    "The strike of dock workers goes on. " * 5,
]


def wordpiece():
    tokenizer = tokenizers.Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def byte_pairs(cls, sep, pad):
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # All 256 bytes, so that no text is unknown.
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=[cls, pad, sep], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in (sep, cls)]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, cls_token=cls, sep_token=sep
    )


def unigram():
    tokenizer = tokenizers.Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>"
    )


def randomize(model):
    """Values that are exact in half precision, large enough that every part of a layer matters."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = "norm" in name.lower() and name.endswith("weight")
        parameter.data = (1 + 0.2 * noise if norm else 0.3 * noise).half().float()


def transformer(folder, config, tokenizer):
    config.vocab_size = len(tokenizer)
    # Positions of RoBERTa and MPNet begin after the padding's.
    tokenizer.model_max_length = config.max_position_embeddings // 10 * 10
    model = transformers.AutoModel.from_config(config)
    randomize(model)
    model.half().save_pretrained(folder / "network")
    tokenizer.save_pretrained(folder / "network")
    module = modules.Transformer(str(folder / "network"), model_kwargs={"dtype": torch.float64})
    shutil.rmtree(folder / "network")
    return module


def write(folder, model, dimensions=None):
    """Saves an encoder in half precision, and what it computes in double precision."""
    model.double().eval()
    as_list = lambda rows: [[float(f"{v:.9g}") for v in row] for row in rows.tolist()]
    # Newer versions have an empty prompt for queries and documents, which would hide a default prompt.
    default = model.default_prompt_name is not None
    document, query = (model.encode, model.encode) if default else (model.encode_document, model.encode_query)
    golden = {
        "texts": TEXTS,
        "documents": as_list(document(TEXTS, convert_to_tensor=True)),
        "queries": as_list(query(TEXTS, convert_to_tensor=True)),
    }
    if dimensions:
        with model.truncate_embeddings(dimensions):
            rows = model.encode_document(TEXTS, convert_to_tensor=True, normalize_embeddings=True)
        golden["dimensions"], golden["truncated"] = dimensions, as_list(rows)
    model.half().save(str(folder), create_model_card=False)
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
    for name in ("special_tokens_map.json", "vocab.txt", "README.md"):
        (folder / name).unlink(missing_ok=True)


def main(root):
    root.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    random.seed(0)
    sizes = dict(hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS, num_hidden_layers=LAYERS)

    def case(name):
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    folder = case("bert")
    network = transformer(folder, transformers.BertConfig(**sizes, max_position_embeddings=80), wordpiece())
    prompts = {"query": "search: ", "document": "text: ", "other": "no"}
    parts = [network, modules.Pooling(HIDDEN, "cls"), modules.Normalize()]
    write(folder, SentenceTransformer(modules=parts, prompts=prompts), dimensions=8)

    folder = case("bert-instructed")
    network = transformer(folder, transformers.BertConfig(**sizes, max_position_embeddings=80), wordpiece())
    prompts = {"query": "represent the question: ", "document": ""}
    parts = [network, modules.Pooling(HIDDEN, "mean_sqrt_len_tokens", include_prompt=False)]
    write(folder, SentenceTransformer(modules=parts, prompts=prompts))

    folder = case("roberta")
    config = transformers.RobertaConfig(**sizes, max_position_embeddings=82, type_vocab_size=1, pad_token_id=1)
    network = transformer(folder, config, byte_pairs("<s>", "</s>", "<pad>"))
    parts = [network, modules.Pooling(HIDDEN, "mean")]
    write(folder, SentenceTransformer(modules=parts, prompts={"all": "about: "}, default_prompt_name="all"))

    folder = case("xlm-roberta")
    config = transformers.XLMRobertaConfig(**sizes, max_position_embeddings=62, type_vocab_size=1, pad_token_id=1)
    network = transformer(folder, config, unigram())
    parts = [network, modules.Pooling(HIDDEN, "mean"), modules.Normalize()]
    write(folder, SentenceTransformer(modules=parts, prompts={"query": "query: ", "document": "passage: "}))

    folder = case("mpnet")
    network = transformer(folder, transformers.MPNetConfig(**sizes, max_position_embeddings=82), wordpiece())
    write(folder, SentenceTransformer(modules=[network, modules.Pooling(HIDDEN, "mean"), modules.Normalize()]))

    folder = case("distilbert")
    config = transformers.DistilBertConfig(
        dim=HIDDEN, hidden_dim=INNER, n_heads=HEADS, n_layers=LAYERS, max_position_embeddings=80
    )
    network = transformer(folder, config, wordpiece())
    dense = [modules.Dense(HIDDEN, 24), modules.Dense(24, 16, bias=False, activation_function=torch.nn.Identity())]
    for layer in dense:
        randomize(layer)
    write(folder, SentenceTransformer(modules=[network, modules.Pooling(HIDDEN, "max"), *dense, modules.Normalize()]))

    folder = case("modernbert")
    config = transformers.ModernBertConfig(
        **sizes, max_position_embeddings=90, local_attention=8, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        cls_token_id=0, sep_token_id=2,
    )
    network = transformer(folder, config, byte_pairs("[CLS]", "[SEP]", "[PAD]"))
    write(folder, SentenceTransformer(modules=[network, modules.Pooling(HIDDEN, "lasttoken")]))

    folder = case("static")
    tokenizer = wordpiece()
    weights = np.random.default_rng(3).normal(size=(len(tokenizer), HIDDEN)).astype(np.float16)
    network = modules.StaticEmbedding(tokenizer, embedding_weights=weights.astype(np.float64))
    write(folder, SentenceTransformer(modules=[network, modules.Normalize()]))

    folder = case("model2vec")
    from model2vec import StaticModel

    model = StaticModel(weights.astype(np.float32), tokenizer.backend_tokenizer, normalize=True)
    # Longer than it takes: it cuts characters first, then tokens, and leaves unknown tokens out at last.
    texts = TEXTS + ["oil price " * 400, "a I b c " * 400, "unusual words 🦀 " * 200 + "oil " * 900]
    rows = model.encode(texts).tolist()
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    golden = {"texts": texts, "documents": rows, "queries": rows}
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
