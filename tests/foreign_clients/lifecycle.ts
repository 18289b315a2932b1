// The whole life of a rollout by a client in TypeScript: its types are generated from the spec (control.d.ts).
import createClient from "openapi-fetch";
import type { components, paths } from "./control";

type CallRecord = components["schemas"]["CallRecord"];

const [, , baseUrl, rolloutId] = process.argv;
const token = process.env.ROLLOUT_CONTROL_AUTH_TOKEN;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const manifestPath = "/training-token-capture/control/rollouts/{rollout_id}/manifest";
const read = () => client.GET(manifestPath, { params: { path: { rollout_id: rolloutId } } });

function expect(condition: boolean, what: string): void {
  if (!condition) throw new Error(`expected ${what}`);
}

async function main(): Promise<void> {
  const recorded = await read();
  const records: CallRecord[] = recorded.data?.records ?? [];
  expect(records.length === 3, "the three calls that were recorded");
  expect(records[1].prev_len === records[0].cum_len, "a child that continues its parent");
  expect(records[0].admitted_at === 1764450000, "a time to the second");
  expect(recorded.data?.failures[0].reason === "worker_capture_failed", "the failure");

  const bulk = await client.POST("/training-token-capture/control/rollouts/manifests", {
    body: { rollout_ids: [rolloutId, `${rolloutId}-never`] },
  });
  expect(bulk.data?.manifests.length === 2, "both manifests in one answer");

  const retired = await client.POST("/training-token-capture/control/rollouts/retire", {
    body: { rollout_ids: [rolloutId] },
  });
  expect(retired.data?.removed[0] === rolloutId, "the rollout to be removed");
  const gone = await read();
  expect(gone.response.status === 410 && gone.error?.status === 410, "a problem document with status 410");

  const listed = await client.GET("/training-token-capture/control/rollouts", {
    params: { query: { prefix: rolloutId, state: "retired" } },
  });
  expect(listed.data?.rollouts[0].rollout_id === rolloutId, "the retired rollout in the listing");

  await client.POST("/training-token-capture/control/rollouts/delete", { body: { rollout_ids: [rolloutId] } });
  const empty = await read();
  expect(empty.data?.records.length === 0, "an empty manifest of the deleted rollout");
  console.log("TypeScript: read, read many, retired, listed, deleted");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
