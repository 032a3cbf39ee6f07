// A tool loop with OpenAI's Node SDK, printed as JSON: node tools.mjs BASE_URL REQUEST_IDS TOOLS RESULTS
import OpenAI from "openai";

const [baseURL, ...rest] = process.argv.slice(2);
const [ids, tools, results] = rest.map((text) => JSON.parse(text));
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "How is the weather?" }];
const options = (id) => ({ headers: { "X-Request-Id": id } });

const said = ({ message, finish_reason }) => ({
  content: message.content,
  reasoning: message.reasoning,
  finishReason: finish_reason,
  calls: message.tool_calls.map((call) => ({ name: call.function.name, arguments: JSON.parse(call.function.arguments) })),
});

const whole = await client.chat.completions.create({ model: "m", messages, tools }, options(ids[0]));
const helper = client.chat.completions.stream({ model: "m", messages, tools }, options(ids[1]));
const streamed = await helper.finalChatCompletion();

const { message } = streamed.choices[0];
messages.push({ role: "assistant", content: message.content, tool_calls: message.tool_calls });
for (const call of message.tool_calls) {
  messages.push({ role: "tool", tool_call_id: call.id, content: results[call.function.name] });
}
const last = await client.chat.completions.create({ model: "m", messages, tools }, options(ids[2]));

console.log(
  JSON.stringify({
    whole: said(whole.choices[0]),
    streamed: said(streamed.choices[0]),
    answer: last.choices[0].message.content,
  }),
);
