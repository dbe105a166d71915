// Buttons that copy a text, such as a command, and say so.

const SHOWN_MS = 1500;

/** Copies without the clipboard's interface, which pages from a disk or over plain HTTP may lack. */
function copyBySelection(text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "off-screen";
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** Makes all buttons with data-copy work, also those that come later. */
export function serveCopyButtons(): void {
  document.addEventListener("click", async (event) => {
    const pressed = (event.target as Element | null)?.closest<HTMLButtonElement>("button[data-copy]");
    if (!pressed || pressed.ariaLive) return;
    const before = pressed.textContent;
    pressed.ariaLive = "polite";
    pressed.textContent = (await copy(pressed.dataset.copy ?? "")) ? "Copied" : "Not copied: select the text";
    pressed.focus();
    setTimeout(() => {
      pressed.textContent = before;
      pressed.ariaLive = null;
    }, SHOWN_MS);
  });
}
