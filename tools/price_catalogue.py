"""Makes the catalogues of prices from the lists that Karpenter's providers for clouds generate.

    python tools/price_catalogue.py aws zz_generated.pricing_aws.go COMMIT
    python tools/price_catalogue.py google initial-prices.json COMMIT 2026-07-14

The lists are pkg/providers/pricing/zz_generated.pricing_aws.go of aws/karpenter-provider-aws and
pkg/providers/pricing/initial-prices.json of cloudpilot-ai/karpenter-provider-gcp, on GitHub (both
Apache-2.0), made from the clouds' price lists; COMMIT is the one a list was taken from. Google's
does not say its day: give the commit's. It has the whole price of a type with its own accelerators;
types to which others can be attached, which are sold apart, are left out. So are types that
instance_types.csv does not have, and regions but the first of each cloud.
Writes a file of src/headrace/decide/cost/catalogues.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "headrace"
TYPES = SOURCE / "platforms" / "instance_types.csv"
CATALOGUES = SOURCE / "decide" / "cost" / "catalogues"
COLUMNS = (
    "InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "Region", "Price",
    "SpotPrice", "PriceDate", "Source",
)  # fmt: skip
DAY = re.compile(r"generated at (\d{4}-\d\d-\d\d)T")
REGION = re.compile(r'^\t"([a-z0-9-]+)": \{$')
PRICE = re.compile(r'"([a-z0-9.-]+)": (\d+\.\d+)')


@dataclass(frozen=True)
class Listed:
    """A price of a list, in US dollars an hour."""

    instance_type: str
    region: str
    usd: float
    spot_usd: float | None = None


def main() -> None:
    """Read a list, and write its catalogue."""
    cloud, file, commit, *day = sys.argv[1:]
    text = Path(file).read_text(encoding="utf-8")
    if cloud == "aws":
        found = DAY.search(text)
        if found is None:
            sys.exit(f"{file} does not say when it was generated.")
        write(
            "aws_ec2.csv", "aws", aws_prices(text), found[1],
            f"https://github.com/aws/karpenter-provider-aws/blob/{commit[:12]}/pkg/providers/pricing/zz_generated.pricing_aws.go",
        )  # fmt: skip
    else:
        write(
            "google_compute.csv", "gcp", google_prices(text), day[0],
            f"https://github.com/cloudpilot-ai/karpenter-provider-gcp/blob/{commit[:12]}/pkg/providers/pricing/initial-prices.json",
        )  # fmt: skip


def write(name: str, cloud: str, prices: Iterator[Listed], day: str, source: str) -> None:
    """Write a catalogue: a row for each price of a type that is known."""
    with TYPES.open(newline="", encoding="utf-8") as file:
        known = {row["type"]: row for row in csv.DictReader(file) if row["cloud"] == cloud}
    with (CATALOGUES / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for price in prices:
            if price.instance_type in known:
                has = known[price.instance_type]
                writer.writerow(
                    {
                        "InstanceType": price.instance_type,
                        "vCPUs": has["cores"],
                        "MemoryGiB": has["memory_gib"],
                        "AcceleratorName": has["device"],
                        "AcceleratorCount": has["devices"] if has["devices"] != "0" else "",
                        "Region": price.region,
                        "Price": f"{price.usd:g}",
                        "SpotPrice": "" if price.spot_usd is None else f"{price.spot_usd:g}",
                        "PriceDate": day,
                        "Source": source,
                    }
                )


def aws_prices(text: str) -> Iterator[Listed]:
    """Yield EC2's prices on demand."""
    region = ""
    for line in text.splitlines():
        if (begins := REGION.match(line)) is not None:
            region = begins[1]
        for name, usd in PRICE.findall(line):
            if region == "us-east-1":
                yield Listed(name, region, float(usd))


def google_prices(text: str) -> Iterator[Listed]:
    """Yield Compute Engine's prices, on demand and as spot instances."""
    region = "us-central1"
    found = json.loads(text)["prices"][region]
    for name, usd in sorted(found["on_demand"].items()):
        if name.startswith("n1-"):
            continue
        yield Listed(name, region, usd, found["spot"].get(name))


if __name__ == "__main__":
    main()
