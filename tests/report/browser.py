"""A headless Chromium, spoken to through a pipe (the DevTools protocol with `--remote-debugging-pipe`)."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

REPORT_IS_WHOLE = "document.getElementById('footer').textContent !== ''"


def chromium():
    """The browser's program, or None where there is none."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Browser:
    """One process; `open` makes a page in it."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="personafl-chromium-", ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
                 "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}")  # fmt: skip

        # Chromium reads commands from descriptor 3 and answers on 4. A shell puts them there.
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, chromium(), *flags, "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._rest, self.events = 0, b"", []

    def call(self, method, session=None, **values):
        """Send a command and wait for its answer; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, address, **settings):
        return Page(self, address, **settings)

    def close(self):
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Page:
    """A page that has finished loading, with what it said and asked for since; a report's last words are its footer."""

    def __init__(self, browser, address, width=1280, height=900, dark=False, still=True, ready=REPORT_IS_WHOLE):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.target = target
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        features += [{"name": "prefers-reduced-motion", "value": "reduce"}] if still else []
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && {ready}")

    def call(self, method, **values):
        return self.browser.call(method, self.session, **values)

    def run(self, script):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", str(found)))
        return found["result"].get("value")

    def wait(self, script):
        while not self.run(script):
            time.sleep(0.02)

    def key(self, key, code=None, number=0):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=number)

    def scroll_to(self, selector):
        """Bring an element to the middle, and wait for the scroll event: it comes with the next frame."""
        self.call("Page.bringToFront")
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{ block: 'center' }})")
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def point(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def errors(self):
        """What the console and the log complain about, uncaught exceptions included."""
        mine = [e for e in self.browser.events if e.get("sessionId") == self.session]
        said = [e["params"] for e in mine if e["method"] == "Runtime.exceptionThrown"]
        said += [
            e["params"]
            for e in mine
            if e["method"] == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning")
        ]
        return said + [
            e["params"] for e in mine if e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] != "verbose"
        ]

    def requests(self):
        """Addresses that were asked for, other than data: and the page itself."""
        mine = [
            e
            for e in self.browser.events
            if e.get("sessionId") == self.session and e["method"] == "Network.requestWillBeSent"
        ]
        asked = [e["params"]["request"]["url"] for e in mine if e["params"].get("type") != "Document"]
        return [address for address in asked if not address.startswith("data:")]

    def picture(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
