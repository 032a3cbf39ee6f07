// Vercel's AI SDK: text, stream, a tool loop and an object, printed as JSON: node ai.mjs ADDRESS KEY MODEL QUESTION WARM
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [address, apiKey, name, question, warm] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "octavo",
  baseURL: `${address}/v1`,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const options = { model: provider(name), temperature: 0, maxOutputTokens: 60, maxRetries: 0 };

const whole = await generateText({ ...options, prompt: question });
const stream = streamText({ ...options, prompt: question });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;

const calls = [];
const temperature = tool({
  description: "The temperature in a city, in degrees Celsius",
  inputSchema: z.object({ city: z.enum(["Paris", "Oslo"]) }).strict(),
  execute: async ({ city }) => {
    calls.push(city);
    return `It is 21 degrees Celsius in ${city}.`;
  },
});
const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
const providerOptions = { octavo: { parallel_tool_calls: false } };
const loop = { ...options, providerOptions, prompt: warm, tools: { temperature }, stopWhen: stepCountIs(2), prepareStep };
const looped = await generateText(loop);
const streamedLoop = streamText(loop);
await streamedLoop.consumeStream();

const schema = z.object({ city: z.enum(["Paris", "Oslo"]) }).strict();
const object = await generateText({ ...options, prompt: question, output: Output.object({ schema }) });

console.log(
  JSON.stringify({
    whole: whole.text,
    streamed,
    usage: [whole.usage.outputTokens, (await stream.usage).outputTokens],
    finishReason: await stream.finishReason,
    calls,
    steps: looped.steps.map((step) => step.finishReason),
    looped: looped.text,
    streamedLoop: await streamedLoop.text,
    object: object.output,
  }),
);
