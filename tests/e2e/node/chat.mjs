// Talks to a server with OpenAI's Node SDK and prints what it got as JSON: node chat.mjs BASE_URL KEY MODEL QUESTION
import OpenAI from "openai";

const [baseURL, apiKey, model, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const request = { model, messages: [{ role: "user", content: question }], temperature: 0, max_tokens: 20 };

const whole = await client.chat.completions.create(request);

let streamed = "";
let finishReason = null;
let usage = null;
const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  const choice = chunk.choices[0];
  streamed += choice?.delta?.content ?? "";
  finishReason = choice?.finish_reason ?? finishReason;
  usage = chunk.usage ?? usage;
}

const helper = client.chat.completions.stream(request);
const assembled = await helper.finalChatCompletion();

const models = [];
for await (const each of client.models.list()) models.push(each.id);

let refusal = null;
try {
  await client.chat.completions.create({ ...request, temperature: -1 });
} catch (error) {
  refusal = { kind: error.constructor.name, status: error.status, param: error.param, message: error.message };
}

const text = await client.completions.create({ model, prompt: "Hello", max_tokens: 3, temperature: 0 });

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    wholeUsage: whole.usage,
    streamed,
    finishReason,
    usage,
    assembled: assembled.choices[0].message.content,
    models,
    refusal,
    text: text.choices[0].text,
  }),
);
