"""Ask a server with OpenAI's interface one question and print the answer while it comes.

python examples/ask_server.py "What is the capital of France?" --address http://127.0.0.1:23333
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

QUESTION = "Write two sentences about the sea."


def main(
    question: Annotated[str, typer.Argument(help="What to ask.")] = QUESTION,
    address: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:23333",
    length: Annotated[int, typer.Option(min=1, help="How many tokens the answer has at most.")] = 64,
) -> None:
    """Stream the answer of the first model that the server lists."""
    try:
        from openai import OpenAI, OpenAIError
    except ImportError:
        raise typer.BadParameter("The client needs the package openai: pip install openai") from None

    client = OpenAI(base_url=f"{address.rstrip('/')}/v1", api_key="none", timeout=120)
    try:
        model = client.models.list().data[0].id
        print(f"{model} at {address}\n\nQ: {question}\nA: ", end="", flush=True)
        start, pieces = time.monotonic(), 0
        for chunk in client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=length,
            stream=True,
        ):
            text = chunk.choices[0].delta.content if chunk.choices else None
            pieces += bool(text)
            print(text or "", end="", flush=True)
    except OpenAIError as error:
        raise typer.BadParameter(f"{address} did not answer: {error}. Is the server running there?") from None
    print(f"\n\n{pieces} pieces in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    typer.run(main)
