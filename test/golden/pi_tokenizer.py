"""A tiny tokenizer like PaliGemma's: SentencePiece BPE, digits split, bytes as a last resort.

Needs sentencepiece, protobuf and transformers: only what writes the golden files imports this.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
from pi_cases import VOCABULARY
from transformers import AutoTokenizer, GemmaTokenizer

_SENTENCES = (
    'Task: pick up the red cube, State: 12 128 255 0 -1 99;',
    'Action: ',
    'put the blue cube into the green box',
    'open the drawer and close the door',
    'pick up the red cube and put it into the box, then come back to the start',
    'fold the towel; stack the cups, plates and bowls',
)
_SYMBOLS = ('\n', '\n\n', '<loc0000>')


def write_tokenizer(folder: Path) -> Any:
    """Train it, write tokenizer.model, tokenizer.json and its settings, return LeRobot's view."""
    folder.mkdir(exist_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_SENTENCES * 4),
        model_writer=model,
        model_type='bpe',
        vocab_size=VOCABULARY,
        hard_vocab_limit=False,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name='identity',
        user_defined_symbols=list(_SYMBOLS),
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece='<pad>',
        eos_piece='<eos>',
        bos_piece='<bos>',
        unk_piece='<unk>',
        num_threads=1,
        minloglevel=2,
    )
    stored = folder / 'tokenizer.model'
    stored.write_bytes(model.getvalue())
    made = GemmaTokenizer.from_pretrained(folder, vocab_file=str(stored), add_bos_token=True)
    made.save_pretrained(folder)
    settings = folder / 'tokenizer_config.json'
    kept = json.loads(settings.read_text())
    for local in ('vocab_file', 'is_local', 'name_or_path'):
        kept.pop(local, None)
    settings.write_text(json.dumps(kept, indent=2) + '\n')
    return AutoTokenizer.from_pretrained(folder)
