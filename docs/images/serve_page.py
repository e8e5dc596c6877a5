"""Makes serve_page.png: the page of `resnet-tpu serve` in a Chromium, with photos that were just classified.

python docs/images/serve_page.py BUNDLE PHOTO... [--output=PNG] [--width=1200 --height=900] [--dark] [--phone]
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, expect, sync_playwright

from resnet_tpu.performance.bench import server


def main() -> None:
    """Serves the bundle, uploads the photos, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("photos", nargs="+")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".png"))
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=860)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    given = parser.parse_args()
    with server.running([given.bundle]) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(
            viewport=ViewportSize(width=given.width, height=given.height),
            color_scheme="dark" if given.dark else "light",
            reduced_motion="reduce",
            has_touch=given.phone,
            is_mobile=given.phone,
        )
        page = context.new_page()
        page.goto(f"{served.url}/")
        expect(page.locator("#card")).to_be_visible()
        page.locator("#files").set_input_files(given.photos)
        expect(page.locator(".photo :is(.tops, .error)")).to_have_count(len(given.photos))
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture.quantize(256).save(given.output, optimize=True)  # a third of the bytes
        browser.close()


if __name__ == "__main__":
    main()
