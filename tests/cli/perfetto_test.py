#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The traces of gpumemctl are what Perfetto's own definitions say.

Needs the package "perfetto" of PyPI, which no Debian package has: without it the test is skipped.
"""
import collections
import os
import shutil
import subprocess
import tempfile
import time
import unittest

try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto
except ImportError:
    perfetto = None

GPUMEMCTL = os.path.abspath(os.environ.get("GPUMEM_GPUMEMCTL", "client/cli/gpumemctl"))
GPUMEMD = os.path.abspath(os.environ.get("GPUMEM_GPUMEMD", "daemon/gpumemd"))
DEADLINE = 60


@unittest.skipIf(perfetto is None, "Python's perfetto is not installed here")
class PerfettoTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpumem-perfetto-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        daemon = subprocess.Popen(
            [GPUMEMD, "--backend", "host", "--host-device-bytes", "64MiB", "--runtime-dir",
             self.folder, "--state-dir", self.folder + "/state"], stdout=log, stderr=log)
        self.addCleanup(daemon.wait, DEADLINE)
        self.addCleanup(daemon.terminate)
        deadline = time.monotonic() + DEADLINE
        while self.run_ctl("status").returncode != 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def run_ctl(self, *arguments, **env):
        return subprocess.run([GPUMEMCTL, "--runtime-dir", self.folder, *arguments], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=DEADLINE, env=os.environ | env)

    def record(self):
        """Returns the trace of a daemon and of three clients, which share a file."""
        own = os.path.join(self.folder, "client.pftrace")
        out = os.path.join(self.folder, "both.pftrace")
        with subprocess.Popen([GPUMEMCTL, "--runtime-dir", self.folder, "trace", "on", "--seconds",
                               "3", "--out", out, "--with", own],
                              stdout=subprocess.DEVNULL) as tracing:
            while tracing.poll() is None:
                self.assertEqual(self.run_ctl("hold", "--size", "2MiB", "--for", "1ms",
                                              GPUMEM_TRACE_FILE=own).returncode, 0)
        self.assertEqual(tracing.returncode, 0)
        trace = perfetto.Trace()
        with open(out, "rb") as file:
            trace.ParseFromString(file.read())
        return trace

    def test_the_form_of_traces(self):
        trace = self.record()
        tracks, open_slices, first, names = {}, collections.Counter(), set(), collections.Counter()
        for packet in trace.packet:
            self.assertNotEqual(packet.trusted_packet_sequence_id, 0)
            if packet.trusted_packet_sequence_id not in first:
                self.assertTrue(packet.first_packet_on_sequence)
                self.assertEqual(packet.sequence_flags,
                                 perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
                first.add(packet.trusted_packet_sequence_id)
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                self.assertTrue(not track.parent_uuid or track.parent_uuid in tracks)
                tracks[track.uuid] = track
                continue
            self.assertEqual(packet.WhichOneof("data"), "track_event")
            event = packet.track_event
            self.assertIn(event.track_uuid, tracks)
            # Of CLOCK_BOOTTIME, which is that of traces without another.
            now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self.assertLess(packet.timestamp, now)
            self.assertGreater(packet.timestamp, now - DEADLINE * 10**9)
            if event.type == perfetto.TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[event.track_uuid] += 1
                names[event.name] += 1
                self.assertIn(event.categories[0], ("gpumemd", "libgpumem"))
            elif event.type == perfetto.TrackEvent.TYPE_SLICE_END:
                open_slices[event.track_uuid] -= 1
                self.assertGreaterEqual(open_slices[event.track_uuid], 0)
        self.assertEqual(set(open_slices.values()), {0})
        self.assertGreater(len(first), 1)
        for name in ("acquire", "Acquire", "create", "deliver", "map"):
            self.assertGreater(names[name], 0, name)
        # Nothing that our own definitions do not name, and no unknown field of Perfetto's.
        processes = [track.process.process_name or track.name for track in tracks.values()
                     if not track.parent_uuid]
        self.assertIn("gpumemd", " ".join(processes))

    def test_slices_are_nested(self):
        spans = collections.defaultdict(list)
        for packet in self.record().packet:
            if packet.HasField("track_event"):
                event = packet.track_event
                spans[event.track_uuid].append(
                    (packet.timestamp, event.type != perfetto.TrackEvent.TYPE_SLICE_END))
        for events in spans.values():
            depth = 0
            # As the trace processor does: by time, and else in the order of the file.
            for _, begins in sorted(events, key=lambda event: event[0]):
                depth += 1 if begins else -1
                self.assertGreaterEqual(depth, 0)
            self.assertEqual(depth, 0)


if __name__ == "__main__":
    unittest.main()
