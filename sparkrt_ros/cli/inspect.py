"""Show what a policy folder needs and yields, as a table or as JSON.

Checks the folder as loading it would, but reads no weights and needs no torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('folder', type=Path, help='the policy folder (LeRobot: pretrained_model)')
    parser.add_argument('--json', action='store_true', help='print JSON instead of tables')
    parser.add_argument(
        '--dataset', help='whose statistics to use, where the policy holds several datasets'
    )
    parser.add_argument(
        '--allow-unknown-fields',
        action='store_true',
        help='warn of unknown fields of config.json instead of refusing them',
    )


def run(args: argparse.Namespace) -> int:
    from sparkrt_ros.runtime.checkpoint import describe_checkpoint
    from sparkrt_ros.runtime.checkpoint.report import report

    description = describe_checkpoint(
        args.folder, allow_unknown_fields=args.allow_unknown_fields, dataset=args.dataset
    )
    content = report(description)
    if args.json:
        print(json.dumps(content, indent=2))
    else:
        from sparkrt_ros.cli._inspect_table import print_report

        print_report(content)
    return 0
