# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/share-with-triton.md: its programs run against a server that checks requests by
Triton's protocol, and its request bodies are those that they send.

They are also compared with those of Triton's client, if it is there: $GPUMEM_TRITONCLIENT is a
folder made by pip install --target FOLDER 'tritonclient[http,grpc]'.
"""
import base64
import concurrent.futures
import gc
import http.server
import importlib
import json
import os
import re
import sys
import threading

import gpumem
import pytest
from conftest import charged, eventually

PAGE = "docs/how-to/share-with-triton.md"
HANDLE = bytes(range(64))
MIB = 1 << 20


def blocks(language):
    """Returns the page's blocks in that language."""
    with open(os.path.join(os.environ["GPUMEM_ROOT"], PAGE), encoding="utf-8") as file:
        return re.findall(rf"^```{language}\n(.*?)^```", file.read(), re.M | re.S)


class Refused(Exception):
    """A request that is not as the protocol says."""


def check(condition, what):
    if not condition:
        raise Refused(what)


class Triton(http.server.ThreadingHTTPServer):
    """The part of Triton's HTTP server that knows regions."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []  # (method, path, body)
        self.regions = {}  # name -> (handle, device_id, byte_size)
        self.closing = {}  # name -> how often it is listed after it was unregistered
        self.in_flight = 0  # the above, of the next region

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def answer(self, method, path, body):
        self.requests.append((method, path, body))
        found = re.fullmatch(r"/v2/cudasharedmemory(?:/region/([^/]+))?/(status|register|unregister)",
                             path)
        if found:
            name, action = found.groups()
            check(method == ("GET" if action == "status" else "POST"), "the method")
            return getattr(self, action)(name, body)
        check(method == "POST" and re.fullmatch(r"/v2/models/[^/]+/infer", path), "the path")
        return self.infer(json.loads(body))

    def register(self, name, body):
        check(name is not None and name not in self.regions, "a new name")
        request = json.loads(body)
        handle = base64.b64decode(request["raw_handle"]["b64"], validate=True)
        device, size = request["device_id"], request["byte_size"]
        check(len(handle) == 64, "64 bytes")
        check(type(device) is int and device >= 0 and type(size) is int and size > 0, "numbers")
        self.regions[name] = (handle, device, size)
        return {}

    def unregister(self, name, body):
        check(body == b"", "no body")
        for each in list(self.regions) if name is None else [name]:
            self.closing[each] = self.in_flight
        return {}

    def status(self, name, body):
        check(body == b"", "no body")
        for each, left in list(self.closing.items()):
            if left == 0:
                self.regions.pop(each, None)
                del self.closing[each]
            else:
                self.closing[each] -= 1
        check(name is None or name in self.regions, "a registered name")
        return [{"name": each, "device_id": device, "byte_size": size}
                for each, (_, device, size) in self.regions.items() if name in (None, each)]

    def infer(self, request):
        for tensor in request["inputs"] + request["outputs"]:
            check("data" not in tensor, "no data")
            parameters = tensor["parameters"]
            region = parameters["shared_memory_region"]
            check(region in self.regions, "a registered region")
            end = parameters.get("shared_memory_offset", 0) + parameters["shared_memory_byte_size"]
            check(end <= self.regions[region][2], "a tensor in the region")
        for tensor in request["inputs"]:
            check(isinstance(tensor["shape"], list) and tensor["datatype"] == "FP32", "a tensor")
        return {"model_name": "add", "outputs": []}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            code, answer = 200, self.server.answer(self.command, self.path, body)
        except (Refused, KeyError, ValueError, TypeError) as error:
            code, answer = 400, {"error": str(error)}
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture(name="triton")
def _triton(monkeypatch):
    server = Triton()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("TRITON", server.address)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(name="page")
def _page(triton):
    """Returns the names that the page's first program defines."""
    del triton  # it is there first
    scope = {}
    exec(compile(blocks("python")[0], PAGE, "exec"), scope)  # pylint: disable=exec-used
    return scope


class Segment:
    nbytes = MIB

    @staticmethod
    def ipc_handle():
        return HANDLE


def client_library(name):
    """Returns tritonclient.NAME, or skips the test."""
    folder = os.environ.get("GPUMEM_TRITONCLIENT")
    if folder is None:
        pytest.skip("no $GPUMEM_TRITONCLIENT: Triton's client library is not there to compare with")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(f"tritonclient.{name}")


def test_the_programs_run(daemon, triton, page, monkeypatch):
    monkeypatch.setenv("GPUMEM_RUNTIME_DIR", daemon.runtime_dir)
    triton.in_flight = 3
    exec(compile(blocks("python")[1], PAGE, "exec"), page)  # pylint: disable=exec-used
    assert page["status"] == 200, page["answer"]
    region = "/v2/cudasharedmemory/region/frames"
    status = ("GET", "/v2/cudasharedmemory/status")
    assert [request[:2] for request in triton.requests] == [
        ("POST", f"{region}/register"), ("POST", "/v2/models/add/infer"),
        ("POST", f"{region}/unregister"), status, status, status, status]
    assert not triton.regions
    page.clear()  # its arrays keep their memory
    gc.collect()
    with gpumem.connect(daemon.runtime_dir) as client:
        eventually(lambda: charged(client) == 0, "all is given back")


def test_its_bodies_are_those_that_it_sends(triton, page):
    register, infer = blocks("json")
    page["register"]("frames", Segment, 0)
    assert json.loads(triton.requests[-1][2]) == json.loads(register)
    assert triton.regions == {"frames": (HANDLE, 0, MIB)}
    tensor = page["tensor"]
    page["call"]("POST", "/v2/models/add/infer", {
        "inputs": [tensor("IN", "frames", 64, 0, shape=[1, 16], datatype="FP32")],
        "outputs": [tensor("OUT", "frames", 64, 4096)]})
    assert json.loads(triton.requests[-1][2]) == json.loads(infer)


def test_errors_of_the_server_are_raised(triton, page):
    page["register"]("frames", Segment, 0)
    with pytest.raises(RuntimeError, match="does not register frames: .*new name"):
        page["register"]("frames", Segment, 0)
    with pytest.raises(RuntimeError, match="numbers"):
        page["register"]("others", Segment, -1)
    tensor = page["tensor"]
    for region, offset in (("none", 0), ("frames", MIB)):
        status, _ = page["call"]("POST", "/v2/models/add/infer", {
            "inputs": [], "outputs": [tensor("OUT", region, 64, offset)]})
        assert status == 400
    assert set(triton.regions) == {"frames"}


def test_tritons_client_sends_the_same(triton, page):
    library = client_library("http")
    page["register"]("frames", Segment, 0)
    tensor = page["tensor"]
    page["call"]("POST", "/v2/models/add/infer", {
        "inputs": [tensor("IN", "frames", 64, 128, shape=[1, 16], datatype="FP32")],
        "outputs": [tensor("OUT", "frames", 64, 4096)]})
    page["unregister"]("frames")
    ours, triton.requests = triton.requests, []

    client = library.InferenceServerClient(triton.address)
    client.register_cuda_shared_memory("frames", base64.b64encode(HANDLE), 0, MIB)
    given = library.InferInput("IN", [1, 16], "FP32")
    given.set_shared_memory("frames", 64, offset=128)
    result = library.InferRequestedOutput("OUT")
    result.set_shared_memory("frames", 64, offset=4096)
    client.infer("add", [given], outputs=[result])
    client.unregister_cuda_shared_memory("frames")
    client.get_cuda_shared_memory_status()
    client.close()
    # It also spells out a default.
    assert [(method, path, body.replace(b'"binary_data":false,', b""))
            for method, path, body in triton.requests] == ours


def test_tritons_client_over_grpc():
    client_library("grpc")
    grpc = importlib.import_module("grpc")
    messages = importlib.import_module("tritonclient.grpc.service_pb2")
    services = importlib.import_module("tritonclient.grpc.service_pb2_grpc")
    seen = []

    class Server(services.GRPCInferenceServiceServicer):
        def CudaSharedMemoryRegister(self, request, _):
            seen.append((request.name, request.raw_handle, request.device_id, request.byte_size))
            return messages.CudaSharedMemoryRegisterResponse()

        def ModelInfer(self, request, _):
            for tensor in [*request.inputs, *request.outputs]:
                seen.append((tensor.name, tensor.parameters["shared_memory_region"].string_param,
                             tensor.parameters["shared_memory_byte_size"].int64_param,
                             tensor.parameters["shared_memory_offset"].int64_param))
            return messages.ModelInferResponse(model_name="add")

        def CudaSharedMemoryUnregister(self, request, _):
            seen.append(request.name)
            return messages.CudaSharedMemoryUnregisterResponse()

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
    services.add_GRPCInferenceServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    program = blocks("python")[2].replace("localhost:8001", f"127.0.0.1:{port}")
    try:
        exec(compile(program, PAGE, "exec"), {"segment": Segment})  # pylint: disable=exec-used
    finally:
        server.stop(None)
    assert seen == [("frames", HANDLE, 0, MIB), ("IN", "frames", 64, 0), ("OUT", "frames", 64, 4096),
                    "frames"]
