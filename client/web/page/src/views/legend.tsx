// SPDX-License-Identifier: Apache-2.0
// What the map's colours and patterns mean, for people who see it for the first time.

export function Legend() {
  return (
    <div class="legend">
      <p>
        <b>How to read the map.</b> Each area is as large as its share of the memory. A colour is a
        tenant: the user, job or team that is charged. Inside are its processes (sessions), and inside
        these the segments, the pieces of memory that they hold.
      </p>
      <ul>
        <li><span class="key solid" aria-hidden="true" /> in use by one session, or published</li>
        <li><span class="key hatched" aria-hidden="true" /> shared: several processes use the same memory, charged once</li>
        <li><span class="key pale" aria-hidden="true" /> pale: charged, but not in use now: kept for reuse, lingering, suspended, or on its way</li>
        <li><span class="key crossed" aria-hidden="true" /> not from gpumem: plain cudaMalloc, CUDA contexts, the driver</li>
        <li><span class="key free" aria-hidden="true" /> free</li>
      </ul>
    </div>
  );
}
