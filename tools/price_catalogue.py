"""Makes the catalogue of EC2's prices from the list that the Karpenter provider for AWS generates.

    python tools/price_catalogue.py zz_generated.pricing_aws.go COMMIT

The list is pkg/providers/pricing/zz_generated.pricing_aws.go of aws/karpenter-provider-aws, on
GitHub (Apache-2.0), made from AWS's price list API; COMMIT is the one it was taken from. Types that
instance_types.csv does not have are left out. Writes
src/headrace/decide/cost/catalogues/aws_ec2.csv.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "headrace"
TYPES = SOURCE / "platforms" / "instance_types.csv"
CATALOGUE = SOURCE / "decide" / "cost" / "catalogues" / "aws_ec2.csv"
URL = "https://github.com/aws/karpenter-provider-aws/blob/{}/pkg/providers/pricing/zz_generated.pricing_aws.go"
COLUMNS = (
    "InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "Region", "Price",
    "SpotPrice", "PriceDate", "Source",
)  # fmt: skip
DAY = re.compile(r"generated at (\d{4}-\d\d-\d\d)T")
REGION = re.compile(r'^\t"([a-z0-9-]+)": \{$')
PRICE = re.compile(r'"([a-z0-9.-]+)": (\d+\.\d+)')


def main() -> None:
    """Read the list, and write the catalogue."""
    text, commit = Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]
    found = DAY.search(text)
    if found is None:
        sys.exit(f"{sys.argv[1]} does not say when it was generated.")
    with CATALOGUE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows(text):
            writer.writerow({**row, "PriceDate": found[1], "Source": URL.format(commit[:12])})


def rows(text: str) -> Iterator[dict[str, str]]:
    """Yield a row for each type that is known, and each region."""
    with TYPES.open(newline="", encoding="utf-8") as file:
        known = {row["type"]: row for row in csv.DictReader(file) if row["cloud"] == "aws"}
    region = ""
    for line in text.splitlines():
        if (begins := REGION.match(line)) is not None:
            region = begins[1]
        for name, usd in PRICE.findall(line):
            if name in known:
                has = known[name]
                yield {
                    "InstanceType": name,
                    "vCPUs": has["cores"],
                    "MemoryGiB": has["memory_gib"],
                    "AcceleratorName": has["device"],
                    "AcceleratorCount": has["devices"] if has["devices"] != "0" else "",
                    "Region": region,
                    "Price": f"{float(usd):g}",
                }


if __name__ == "__main__":
    main()
