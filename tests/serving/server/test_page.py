"""The page at / in a real Chromium: all ways to give it photos, answers, errors, keyboard, small screens."""

import base64
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from resnet_tpu.serving import server

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Locator, Page, Route, ViewportSize, expect  # noqa: E402

CLASSES = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
LONG_NAME = "a-photo-with-a-name-that-has-no-place-to-break-and-is-longer-than-any-phone-is-wide.jpg"
PAGE = Path(server.__file__).parent / "page"

REFUSED = re.compile(r"Failed to load resource: .*(400|503|net::|(404|413) .*/v1/models/)")
"""What the console may say."""

Classes = list[tuple[str, str]]
"""(class, per cent) pairs, the most probable class first."""


@pytest.fixture(scope="module")
def photos(images: list[bytes], expected: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Classes]:
    """Image files (JPEG, PNG, rotated, WebP), with what the page must show: the results of `predict`."""
    folder, found = tmp_path_factory.mktemp("photos"), {}
    for number, (image, shares) in enumerate(zip(images[:4], expected, strict=False)):
        path = folder / f"{number}.{('jpg', 'png', 'jpg', 'webp')[number]}"
        path.write_bytes(image)
        found[path] = [(CLASSES[i], f"{shares[i]:.1%}") for i in np.argsort(-shares)]
    assert len({classes[0] for classes in found.values()}) > 1
    return found


@pytest.fixture(scope="module")
def photo(photos: dict[Path, Classes]) -> Path:
    """The first of the photos, a JPEG."""
    return next(iter(photos))


@pytest.fixture(scope="module")
def url(export_dir: Path, start_server: Callable[..., Any]) -> Iterator[str]:
    """The URL of a server that serves the same bundle under two names, and takes up to 0.1 MB."""
    with start_server(f"flowers={export_dir}", f"again={export_dir}", "--max_body_mb=0.1") as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium installed on this machine."""
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("no chromium and no google-chrome on PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """An open page, with its requests and console messages."""

    def __init__(self, browser: Browser, url: str, *, phone: bool) -> None:
        self.url = url
        size = ViewportSize(width=360, height=740) if phone else ViewportSize(width=1200, height=900)
        self.context = browser.new_context(viewport=size, has_touch=phone, is_mobile=phone, reduced_motion="reduce")
        self.page: Page = self.context.new_page()
        self.requests: list[tuple[str, str]] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append((request.method, request.url)))
        self.page.on("console", lambda message: self.complaints.append(f"{message.text} {message.location['url']}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        # set now: if set only on a key press, the browser might open its own dialogue first
        self.page.on("filechooser", lambda _: None)
        self.page.goto(f"{url}/")

    def add(self, *paths: Path) -> None:
        """Chooses files as with the file dialogue."""
        self.page.locator("#files").set_input_files(list(paths))

    def answer(self, name: str) -> Locator:
        """The part of the page that shows the answer for a file."""
        return self.page.locator(".photo", has=self.page.get_by_role("heading", name=name, exact=True))


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Callable[..., Visit]]:
    """Opens pages, closes them at the end, and checks for console messages and requests to other hosts."""
    visits: list[Visit] = []

    def open_page(at: str = url, *, phone: bool = False) -> Visit:
        visits.append(Visit(browser, at, phone=phone))
        return visits[-1]

    yield open_page
    for seen in visits:
        seen.context.close()
        assert [text for text in seen.complaints if not REFUSED.match(text)] == []
        assert [url for _, url in seen.requests if not url.startswith((f"{seen.url}/", f"blob:{seen.url}"))] == []


def shown(answer: Locator) -> Classes:
    """The (class, per cent) pairs of an answer, once it has arrived."""
    expect(answer.locator(".tops li")).to_have_count(len(CLASSES))
    return [
        (row.locator("span").first.inner_text(), row.locator(".share").inner_text())
        for row in answer.locator(".tops li").all()
    ]


def test_chosen_photos_get_their_classes(visit: Callable[..., Visit], photos: dict[Path, Classes]) -> None:
    seen = visit()
    expect(seen.page.locator("#about")).to_have_text(re.compile("flowers knows 5 classes: daisy, dandelion, "))
    seen.add(*photos)
    assert seen.page.locator(".photo h3").all_inner_texts() == [photo.name for photo in photos]
    for photo, classes in photos.items():
        answer = seen.answer(photo.name)
        assert shown(answer) == classes
        expect(answer.locator(".small")).to_have_text(re.compile(r"ms on the server, .* ms in all"))
        widths = [row.bounding_box() for row in answer.locator(".fill").all()]
        assert [box["width"] for box in widths if box] == sorted((box["width"] for box in widths if box), reverse=True)
        expect(answer.locator("img")).to_have_js_property("complete", True)
    said = seen.page.locator("#said p").all_inner_texts()
    assert sorted(said) == [f"{photo.name}: {', '.join(classes[0])}" for photo, classes in photos.items()]
    assert len([url for method, url in seen.requests if method == "POST"]) == len(photos)


def test_dropped_and_pasted_photos(visit: Callable[..., Visit], photos: dict[Path, Classes], photo: Path) -> None:
    seen = visit()
    expect(seen.page.locator("#card")).to_be_visible()
    for way in ("drop", "paste"):
        seen.page.evaluate(
            """([way, text, name]) => {
                const data = new DataTransfer();
                const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
                data.items.add(new File([bytes], name, { type: "image/jpeg" }));
                const event = way === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true })
                    : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
                document.body.dispatchEvent(event);
            }""",
            [way, base64.b64encode(photo.read_bytes()).decode(), f"{way}.jpg"],
        )
        assert shown(seen.answer(f"{way}.jpg")) == photos[photo]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param("DragEvent('drop', { dataTransfer", id="drop"),
        pytest.param("ClipboardEvent('paste', { clipboardData", id="paste", marks=pytest.mark.long),
    ],
)
def test_a_drop_that_brings_no_file_is_answered(visit: Callable[..., Visit], event: str) -> None:
    seen = visit()
    hint = seen.page.locator("#hint")
    expect(hint).to_contain_text("or drop them anywhere")
    give = f"node => node.dispatchEvent(new {event}: new DataTransfer(), bubbles: true }}))"
    seen.page.locator("#filter input").evaluate(give)  # text that is pasted there
    expect(hint).to_contain_text("or drop them anywhere")
    seen.page.locator("body").evaluate(give)
    expect(hint).to_have_text("Your browser did not pass on a file. Choose photos with the button.")
    expect(seen.page.locator("#said p")).to_have_text(
        "Your browser did not pass on a file. Choose photos with the button."
    )


@pytest.mark.long
def test_a_drag_is_shown_until_it_leaves_the_page(visit: Callable[..., Visit]) -> None:
    page = visit().page

    def drag(kind: str, where: str) -> None:
        page.locator(where).evaluate("(node, kind) => node.dispatchEvent(new DragEvent(kind, { bubbles: true }))", kind)

    for kind, where in (("dragenter", "main"), ("dragover", "main"), ("dragenter", "#drop"), ("dragleave", "main")):
        drag(kind, where)
    expect(page.locator("body")).to_have_class("dragging")
    drag("dragleave", "#drop")
    expect(page.locator("body")).not_to_have_class("dragging")


def test_page_explains_files_that_are_no_photos(visit: Callable[..., Visit], photo: Path, tmp_path: Path) -> None:
    text, empty, cut = tmp_path / "text.jpg", tmp_path / "empty.png", tmp_path / "cut.jpg"
    text.write_text("Dear diary")
    empty.touch()
    cut.write_bytes(photo.read_bytes()[: photo.stat().st_size // 2])
    seen = visit()
    seen.add(text, empty, cut, photo)
    for path in (text, cut):
        expect(seen.answer(path.name).locator(".error strong")).to_have_text("This cannot be read as a photo.")
        expect(seen.answer(path.name).locator(".error")).not_to_contain_text("skip_bad_records")
    expect(seen.answer(text.name).locator(".kind")).to_have_text("JPG")  # shown instead of a picture
    expect(seen.answer(empty.name).locator(".error strong")).to_have_text("This file is empty.")
    assert len(shown(seen.answer(photo.name))) == len(CLASSES)


@pytest.mark.long
def test_a_folder_and_a_photo_that_was_moved_are_not_sent(visit: Callable[..., Visit]) -> None:
    seen = visit()
    seen.page.evaluate(
        """() => {
            Blob.prototype.arrayBuffer = () => Promise.reject(new DOMException("It was aborted.", "AbortError"));
            const data = new DataTransfer();
            data.items.add(new File([], "holidays")); // as Firefox gives a folder
            data.items.add(new File(["photo"], "moved.jpg"));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }"""
    )
    for name in ("holidays", "moved.jpg"):
        expect(seen.answer(name).locator(".error")).to_have_text(
            re.compile("This cannot be read from your disk. *Choose single photos, not folders.")
        )
    assert [url for method, url in seen.requests if method == "POST"] == []


def test_everything_can_be_done_with_the_keyboard(visit: Callable[..., Visit], photos: dict[Path, Classes]) -> None:
    seen, (photo, other, *_) = visit(), photos
    page = seen.page
    expect(page.locator("#card")).to_be_visible()
    focused = page.locator(":focus")
    page.keyboard.press("Tab")
    expect(focused).to_have_id("model")
    page.keyboard.press("Tab")
    expect(focused).to_have_id("files")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([photo, other])
    expect(page.locator(".tops")).to_have_count(2)
    for name in ("Remove all", f"Remove {photo.name}", f"Remove {other.name}"):
        page.keyboard.press("Tab")
        expect(focused).to_have_accessible_name(name)
    page.keyboard.press("Enter")
    expect(focused).to_have_accessible_name(f"Remove {photo.name}")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("#classes li")).to_have_text(CLASSES)
    page.keyboard.press("Tab")  # the list is short here, and in Safari only what is focusable can be scrolled
    expect(focused).to_have_accessible_name("Classes")
    page.get_by_role("button", name="Remove all").press("Enter")
    expect(page.locator("#results")).to_be_hidden()
    expect(focused).to_have_id("files")


def test_another_model_is_asked_about_the_same_photos(
    visit: Callable[..., Visit], photos: dict[Path, Classes], photo: Path, export_dir: Path
) -> None:
    seen = visit()
    seen.add(photo)
    expect(seen.page.locator(".small")).to_have_text(re.compile("^flowers · "))
    seen.page.get_by_label("Model", exact=True).select_option("again")
    expect(seen.page.locator(".small")).to_have_text(re.compile("^again · "))
    assert shown(seen.answer(photo.name)) == photos[photo]
    facts = dict(zip(*(seen.page.locator(f"#facts {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
    assert facts["Name"] == "again"
    assert facts["Network"] == "ResNet-8, 32 × 32 px"
    assert facts["Runs on"] == "ONNX Runtime, float32"
    assert facts["Version"] == next(export_dir.iterdir()).name


@pytest.mark.long
def test_a_card_that_does_not_come_is_asked_for_again(visit: Callable[..., Visit], photo: Path) -> None:
    seen = visit()
    card, about = seen.page.locator("#card"), seen.page.locator("#about")
    expect(card).to_be_visible()
    seen.page.route("**/again/metadata", lambda route: route.abort(), times=1)
    seen.page.get_by_label("Model", exact=True).select_option("again")
    expect(about).to_contain_text("The server cannot be reached.")
    expect(card).to_be_hidden()  # it is that of the other model
    seen.add(photo)
    expect(about).to_contain_text("again knows 5 classes")
    expect(card).to_be_visible()
    expect(seen.page.locator("#facts dd").first).to_have_text("again")


@pytest.mark.long
def test_an_answer_that_breaks_off_is_explained(visit: Callable[..., Visit], photo: Path) -> None:
    seen = visit()
    seen.page.route("**/*:classify", lambda route: route.fulfill(status=200, body='{"predictions": [{"cla'))
    seen.add(photo)
    expect(seen.answer(photo.name).locator(".error")).to_contain_text("The server cannot be reached.")


def test_a_single_model_is_no_choice(visit: Callable[..., Visit]) -> None:
    page = visit().page
    expect(page.locator("#choice")).to_be_visible()

    def answer(route: Route) -> None:
        told = route.fetch()
        route.fulfill(response=told, json=told.json() | {"models": told.json()["models"][:1]})

    page.route("**/v1/models", answer)
    page.reload()
    expect(page.locator("#card")).to_be_visible()
    expect(page.locator("#choice")).to_be_hidden()


@pytest.mark.long
def test_on_a_phone_nothing_is_wider_than_the_screen(visit: Callable[..., Visit], photo: Path, tmp_path: Path) -> None:
    long = tmp_path / LONG_NAME
    long.write_bytes(photo.read_bytes())
    broken = tmp_path / f"broken-{LONG_NAME}"
    broken.write_text("no photo")
    seen = visit(phone=True)
    seen.add(long, broken)
    expect(seen.page.locator(".error")).to_be_visible()
    assert len(shown(seen.answer(long.name))) == len(CLASSES)
    seen.page.locator("#classes summary").tap()
    expect(seen.page.locator("#classes li")).to_have_count(len(CLASSES))
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360
    expect(seen.page.get_by_text("Take a photo")).to_be_visible()
    for target in seen.page.locator("button:visible, .call:visible, summary:visible").all():
        box = target.bounding_box()
        assert box
        assert min(box["width"], box["height"]) >= 44  # the size of a thumb
    for field in ("#model", "#filter input"):  # an iPhone magnifies the page for a field of less than 16 px
        expect(seen.page.locator(field)).to_have_css("font-size", "16px")


@pytest.mark.long
def test_on_a_phone_the_interface_is_not_wider_than_the_screen(visit: Callable[..., Visit]) -> None:
    seen = visit(phone=True)
    seen.page.get_by_role("link", name="How programs can use it").tap()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(re.compile("resnet_tpu"))
    seen.page.get_by_role("link", name="NamedClass").tap()
    expect(seen.page.locator("#NamedClass pre")).to_be_in_viewport()
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360


@pytest.mark.long
def test_lists_say_that_they_are_lists_and_bars_are_seen_with_high_contrast(
    visit: Callable[..., Visit], photo: Path
) -> None:
    seen = visit()
    seen.page.emulate_media(forced_colors="active", reduced_motion="reduce")
    seen.add(photo)
    shown(seen.answer(photo.name))
    expect(seen.page.locator("ul[role=list]")).to_have_count(3)
    expect(seen.page.locator("ul:not([role=list])")).to_have_count(0)  # without bullets, they say what they are
    expect(seen.page.locator("#drop .call")).not_to_have_css("border-top-width", "0px")
    ground = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    for bar in seen.page.locator(".fill").all():
        expect(bar).not_to_have_css("background-color", ground)


@pytest.mark.long
def test_a_busy_server_is_asked_again_once(
    visit: Callable[..., Visit], photos: dict[Path, Classes], photo: Path
) -> None:
    seen = visit()
    refusals = [503, 503, 503]

    def answer(route: Route) -> None:
        if refusals:
            route.fulfill(status=refusals.pop(), headers={"Retry-After": "0.05"}, json={"error": "Queue: full"})
        else:
            route.continue_()

    seen.page.route("**/*:classify", answer)
    seen.add(photo)
    error = seen.answer(photo.name).locator(".error")
    expect(error).to_contain_text("The server is busy.", timeout=10_000)
    assert refusals == [503]
    error.get_by_role("button", name="Try again").click()
    assert shown(seen.answer(photo.name)) == photos[photo]


@pytest.mark.long
def test_photos_wait_until_the_models_are_known(
    visit: Callable[..., Visit], photos: dict[Path, Classes], photo: Path
) -> None:
    seen = visit()
    held: list[Route] = []
    seen.page.route("**/v1/models", lambda route: held.append(route))
    with seen.page.expect_request("**/v1/models"):
        seen.page.reload()
    seen.add(photo)
    expect(seen.page.locator(".looking")).to_be_visible()
    assert [url for method, url in seen.requests if method == "POST"] == []
    held.pop().abort()
    error = seen.answer(photo.name).locator(".error")
    expect(error).to_contain_text("The server cannot be reached.")
    expect(seen.page.locator("#about")).to_contain_text("The server cannot be reached.")
    expect(seen.page.locator("#said p").first).to_have_text("The server cannot be reached. Is it still running?")
    seen.page.unroute("**/v1/models")
    error.get_by_role("button", name="Try again").click()
    assert shown(seen.answer(photo.name)) == photos[photo]
    expect(seen.page.locator("#card")).to_be_visible()
    expect(seen.page.locator("#about")).to_contain_text("flowers knows 5 classes")


@pytest.mark.long
def test_pressing_try_again_twice_does_not_remove_the_photo(visit: Callable[..., Visit], photo: Path) -> None:
    seen = visit()
    seen.page.route("**/*:classify", lambda route: route.abort())
    seen.add(photo)
    again = seen.answer(photo.name).get_by_role("button", name="Try again")
    for _ in range(2):
        again.focus()
        with seen.page.expect_request("**/*:classify"):
            seen.page.keyboard.press("Enter")
        expect(again).to_be_focused()
    expect(seen.page.locator("#said p").last).to_have_text(
        f"{photo.name}: The server cannot be reached. Is it still running?"
    )


@pytest.mark.long
def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(visit: Callable[..., Visit], photo: Path) -> None:
    seen = visit()
    expect(seen.page.locator("#card")).to_be_visible()
    held: list[Route] = []
    seen.page.route("**/*:classify", lambda route: held.append(route))
    seen.page.clock.install()
    with seen.page.expect_request("**/*:classify"):
        seen.add(photo)
    seen.page.clock.run_for(35_000)  # longer than the server's own limit
    expect(seen.answer(photo.name).locator(".looking")).to_be_visible()
    seen.page.clock.run_for(10_000)
    expect(seen.answer(photo.name).locator(".error")).to_contain_text("The server took too long.")
    held.pop().abort()


@pytest.mark.long
def test_a_newer_model_that_answers_has_its_own_card(visit: Callable[..., Visit], photo: Path) -> None:
    seen = visit()
    expect(seen.page.locator("#card")).to_be_visible()

    def newer(route: Route) -> None:
        answer = {"classes": [{"class": "39", "probability": 1}]}
        route.fulfill(json={"predictions": [answer], "version": 9, "ms": 1})

    def card(route: Route) -> None:
        reply = route.fetch()
        told = reply.json()
        told["model_card"] |= {"version": 9, "class_names": [str(number) for number in range(40)]}
        route.fulfill(response=reply, json=told)

    seen.page.route("**/*:classify", newer)
    seen.page.route("**/metadata", card)
    seen.add(photo)
    expect(seen.page.locator("#about")).to_contain_text("flowers knows 40 classes")
    search = seen.page.locator("#filter input")
    seen.page.locator("#classes summary").click()
    search.fill("39")
    expect(seen.page.locator("#classes li")).to_have_text(["39"])
    search.fill("rose")
    expect(seen.page.locator("#classes li")).to_have_text("No class has this in its name.")
    expect(seen.page.locator("#said p").last).to_have_text("No class has this in its name.")


@pytest.mark.long
def test_a_model_that_is_gone_is_looked_for_again(
    visit: Callable[..., Visit], photos: dict[Path, Classes], photo: Path
) -> None:
    seen = visit()
    seen.page.route(
        "**/v1/models", lambda route: route.fulfill(json={"models": [{"name": "former", "version": 1}]}), times=1
    )
    seen.page.reload()
    seen.add(photo)
    error = seen.answer(photo.name).locator(".error")
    expect(error).to_contain_text("The server's models have changed.")
    error.get_by_role("button", name="Try again").click()
    assert shown(seen.answer(photo.name)) == photos[photo]


@pytest.mark.long
def test_page_explains_what_refused_a_large_file(visit: Callable[..., Visit], photo: Path, tmp_path: Path) -> None:
    pixels = tmp_path / "pixels.png"
    Image.new("1", (7000, 8000)).save(pixels)
    seen = visit()
    seen.add(pixels)
    error = seen.answer(pixels.name).locator(".error")
    expect(error).to_have_text(re.compile("^This photo is too large. *Image: got 7000 x 8000 pixels, expected at most"))
    seen.page.route("**/*:classify", lambda route: route.fulfill(status=413, body="<html>nginx</html>"))
    seen.add(photo)
    error = seen.answer(photo.name).locator(".error")
    expect(error).to_have_text(
        re.compile(r"^This file is too large. *A proxy in front of the server refuses 0.\d MB.$")
    )


@pytest.mark.long
def test_a_server_that_is_gone_and_a_photo_that_is_too_large(
    visit: Callable[..., Visit], photo: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large.jpg"
    large.write_bytes(bytes(200_000))
    seen = visit()
    seen.add(large)
    expect(seen.answer(large.name).locator(".error")).to_have_text(
        re.compile("This file is too large. *It is 0.2 MB. The server accepts up to 0.1 MB.")
    )
    slightly = tmp_path / "slightly.jpg"
    slightly.write_bytes(bytes(100_001))
    seen.add(slightly)
    expect(seen.answer(slightly.name).locator(".error")).to_contain_text(
        "It is 0.1 MB, slightly more than the server accepts."
    )
    assert [url for method, url in seen.requests if method == "POST"] == []
    nearly = tmp_path / "nearly.jpg"
    nearly.write_bytes(bytes(99_950))  # too much with the form around it
    seen.add(nearly)
    expect(seen.answer(nearly.name).locator(".error")).to_contain_text(
        "It is 0.1 MB, slightly more than the server accepts."
    )
    seen.context.set_offline(True)
    seen.add(photo)
    error = seen.answer(photo.name).locator(".error")
    expect(error).to_contain_text("The server cannot be reached.")
    expect(error.get_by_role("button", name="Try again")).to_be_visible()


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colours_have_contrast_in_light_and_dark() -> None:
    style = (PAGE / "page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(blocks) == 2  # light and dark
    for block in blocks:
        colours = dict(re.findall(r"--(\S+): (#\w{6});", block))
        needs = [(text, ground, 4.5) for text in ("text", "muted", "accent", "bad") for ground in ("surface", "ground")]
        needs += [("on-accent", "accent", 4.5), ("muted", "track", 4.5)]
        needs += [("edge", "surface", 3), ("accent", "track", 3)]
        for front, back, least in needs:
            light, dark = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= least, (front, back)


def test_the_page_brings_all_that_it_needs() -> None:
    texts = {path.name: path.read_text() for path in PAGE.iterdir()}
    assert texts.keys() == {"index.html", "page.css", "page.js", "icon.svg"}
    linked = re.findall(r'(?:src|href)="([^"]+)"', texts["index.html"])
    assert {name.removeprefix("page/") for name in linked} == {*texts.keys() - {"index.html"}, "docs"}
    for name, text in texts.items():
        assert re.findall(r"(?:https?:)?//\w[\w.]+\w/\S*", text.replace("http://www.w3.org/2000/svg", "")) == [], name
    assert not re.search(r"<style|style=| on\w+=|<script>", texts["index.html"])  # the server's policy forbids them
