// OpenAI's and Anthropic's SDKs for Node, printed as JSON: node sdks.mjs ADDRESS KEY MODEL QUESTION WARM
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [address, apiKey, model, question, warm] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${address}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: address, apiKey, maxRetries: 0 });
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const messages = [{ role: "user", content: question }];
const asked = [{ role: "user", content: warm }];
const common = { model, temperature: 0, max_tokens: 60 };
const calls = [];
const tell = ({ city }) => {
  calls.push(city);
  return `It is 21 degrees Celsius in ${city}.`;
};

const whole = await openai.chat.completions.create({ ...common, messages });
const assembled = await openai.chat.completions.stream({ ...common, messages }).finalContent();
const runner = openai.chat.completions.runTools(
  {
    ...common,
    messages: asked,
    tool_choice: { type: "function", function: { name: "temperature" } },
    tools: [
      {
        type: "function",
        function: { name: "temperature", description: "The temperature", parameters, function: tell, parse: JSON.parse },
      },
    ],
  },
  { maxChatCompletions: 1 },
);
await runner.done();
const format = zodResponseFormat(z.object({ city: z.enum(["Paris", "Oslo"]) }), "capital");
const parsed = await openai.chat.completions.parse({ ...common, messages, response_format: format });
const response = await openai.responses.create({ model, temperature: 0, max_output_tokens: 60, input: question });

const message = await anthropic.messages.create({ ...common, messages });
const said = await anthropic.messages.stream({ ...common, messages }).finalText();
const tools = [{ name: "temperature", input_schema: parameters }];
const choice = { type: "any", disable_parallel_tool_use: true };
const forced = { ...common, messages: asked, tools, tool_choice: choice };
const made = await anthropic.messages.create(forced);
const [call] = made.content.filter((block) => block.type === "tool_use");
const streamed = await anthropic.messages.stream(forced).finalMessage();
const history = [
  ...asked,
  { role: "assistant", content: made.content },
  { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: tell(call.input) }] },
];
const last = await anthropic.messages.create({ ...common, messages: history, tools, tool_choice: { type: "none" } });

console.log(
  JSON.stringify({
    openai: [whole.choices[0].message.content, assembled, response.output_text],
    parsed: parsed.choices[0].message.parsed,
    anthropic: [message.content[0].text, said],
    stopReasons: [message.stop_reason, made.stop_reason, last.stop_reason],
    inputs: [call.input, streamed.content.find((block) => block.type === "tool_use").input],
    calls,
    last: last.content.map((block) => block.type),
  }),
);
