// Asks a running `vivace serve` with what Node has by itself, and prints the answer as it comes.
//     node examples/node/ask_server.mjs http://127.0.0.1:8000 MODEL "Name three colours."
import process from 'node:process';

/// The events of a response's stream, as objects, until "[DONE]".
async function* events(response) {
  let held = '';
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    held += piece;
    const parts = held.split('\n\n');
    held = parts.pop();
    for (const part of parts)
      for (const line of part.split('\n')) {
        if (!line.startsWith('data: ')) continue;  // ": ping" keeps proxies awake
        if (line === 'data: [DONE]') return;
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(event.error.message);
        yield event;
      }
  }
  throw new Error('the stream ended early');
}

export async function ask(url, body, signal) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST', signal, headers: {'content-type': 'application/json', authorization: `Bearer ${process.env.OPENAI_API_KEY ?? 'none'}`},
    body: JSON.stringify({stream: true, stream_options: {include_usage: true}, ...body}),
  });
  if (!response.ok) throw new Error(`${response.status}: ${(await response.json()).error.message}`);
  return events(response);
}

if (process.argv[1] === import.meta.filename) {
  const [url, model, question] = process.argv.slice(2);
  let usage;
  for await (const event of await ask(url, {model, messages: [{role: 'user', content: question}], max_tokens: 48})) {
    process.stdout.write(event.choices[0]?.delta.content ?? '');
    usage = event.usage ?? usage;
  }
  console.log(`\n${usage.completion_tokens} tokens`);
}
