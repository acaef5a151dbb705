"""Checks of HTML that graphbraid writes."""

from html.parser import HTMLParser

VOID = ("meta", "rect", "path", "polyline")


class Closed(HTMLParser):
    """Finds elements that are not closed, or closed in the wrong order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.seen = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def check_html(text):
    """Check that a text is well formed, has no script, and asks nothing of the net."""
    page = Closed(text)
    assert not page.wrong
    assert not page.open
    assert not page.seen & {"script", "link", "img", "iframe", "b1"}
    assert "http" not in text.replace("http-equiv", ""), "a page asks nothing of the net"
    assert len(text) < 300_000
