// A conversation from Node: a whole answer, then one that is printed as it comes.
import OpenAI from "openai";

const client = new OpenAI();
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];

const answer = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 20 });
console.log(answer.choices[0].message.content);

messages.push(answer.choices[0].message, { role: "user", content: "And of Italy?" });
const events = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 20, stream: true });
for await (const event of events) process.stdout.write(event.choices[0]?.delta?.content ?? "");
console.log();
