// Lets the search run when the pages are opened as files: browsers start no worker from file:. The worker's
// script then runs in a hidden frame of the same page, which shares its origin.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const scope = this.frame.contentWindow
      scope.IFrameWorker = window.IFrameWorker
      scope.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve())
      scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.load(url).then(() => {
        for (const data of this.waiting.splice(0)) this.postMessage(data)
        this.waiting = null
      })
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = new URL(url, location.href)
        script.onload = done
        script.onerror = failed
        this.frame.contentDocument.body.appendChild(script)
      })
    }

    postMessage(data) {
      const scope = this.frame.contentWindow
      if (this.waiting) this.waiting.push(data)
      else scope.dispatchEvent(new scope.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
