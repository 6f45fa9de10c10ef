// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/testing/fake_api_server.h"

#include <httplib.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumem::kubernetes {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Freed<X509_free>>;
using Text = std::unique_ptr<BIO, Freed<BIO_free_all>>;

constexpr size_t kThreads = 32;  // each watch has one
constexpr absl::Duration kLook = absl::Milliseconds(20);

FakeApiServer::Answer Refusal(int code, absl::string_view message) {
  return {code, absl::StrCat("{\"kind\": \"Status\", \"message\": \"", message, "\"}")};
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

Certificate MakeCertificate(const std::string& name, const std::string& address) {
  const Key key(EVP_EC_gen("P-256"));
  const Cert certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 24 * 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("kube-apiserver"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate.get(), NID_subject_alt_name,
               absl::StrCat("DNS:", name, ",IP:", address));
  X509_sign(certificate.get(), key.get(), EVP_sha256());

  const Text certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(certificate_text.get(), certificate.get());
  PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {TextOf(certificate_text.get()), TextOf(key_text.get())};
}

FakeApiServer::FakeApiServer(const Certificate& certificate, int port, FakeStore* store)
    : store_(store == nullptr ? &own_store_ : store) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that clients have closed
  const Text certificate_text(BIO_new_mem_buf(certificate.certificate.c_str(), -1));
  const Text key_text(BIO_new_mem_buf(certificate.key.c_str(), -1));
  const Cert cert(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  server_ = std::make_unique<httplib::SSLServer>(cert.get(), key.get());
  server_->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
    const Request asked = {.path = request.path,
                           .authorization = request.get_header_value("Authorization"),
                           .selector = request.get_param_value("fieldSelector"),
                           .next = request.get_param_value("continue"),
                           .method = request.method,
                           .body = request.body,
                           .watch = request.get_param_value("watch") == "true",
                           .version = request.get_param_value("resourceVersion"),
                           .limit = request.get_param_value("limit")};
    const Answer answer = AnswerTo(asked);
    response.status = answer.status;
    if (answer.status == 200 && asked.watch && answer.body.empty() && Watch(asked, &response)) {
      return;
    }
    response.set_content(answer.body, "application/json");
  };
  server_->Get(".*", handle);
  server_->Post(".*", handle);
  server_->Put(".*", handle);
  if (port == 0) {
    port_ = server_->bind_to_any_port("127.0.0.1");
  } else {
    port_ = server_->bind_to_port("127.0.0.1", port) ? port : -1;
  }
  if (port_ <= 0) return;
  thread_ = std::thread([this] { server_->listen_after_bind(); });
  while (!server_->is_running()) absl::SleepFor(absl::Milliseconds(1));
}

FakeApiServer::~FakeApiServer() {
  EndWatches();
  if (!thread_.joinable()) return;
  server_->stop();
  thread_.join();
}

void FakeApiServer::Handle(std::function<Answer(const Request&)> handler) {
  absl::MutexLock lock(&mutex_);
  handler_ = std::move(handler);
}
void FakeApiServer::SetClaims(std::vector<std::string> claims) {
  store_->Set("resourceclaims", claims);
}
void FakeApiServer::SetSlices(std::vector<std::string> slices) {
  store_->Set("resourceslices", slices);
}
void FakeApiServer::SetPods(std::vector<std::string> pods) {
  absl::MutexLock lock(&mutex_);
  pods_ = std::move(pods);
}
void FakeApiServer::SetToken(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  token_ = token;
}
void FakeApiServer::SetVersion(const std::string& version) { store_->SetGroupVersion(version); }
void FakeApiServer::SetPart(size_t items) {
  absl::MutexLock lock(&mutex_);
  part_ = items;
}
std::vector<FakeApiServer::Request> FakeApiServer::Requests() const {
  absl::MutexLock lock(&mutex_);
  return requests_;
}
void FakeApiServer::EndWatches(int refused) {
  absl::MutexLock lock(&mutex_);
  ++ended_watches_;
  refused_ = refused;
}
void FakeApiServer::FreezeWatches(bool frozen) {
  absl::MutexLock lock(&mutex_);
  frozen_ = frozen;
}
void FakeApiServer::SpoilWatches(const std::string& line) {
  absl::MutexLock lock(&mutex_);
  spoiled_ = line;
}

std::optional<std::string> FakeApiServer::NextLines(const std::string& resource, uint64_t watches,
                                                    uint64_t* version) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_watches_ != watches) return std::nullopt;
    if (!spoiled_.empty()) return spoiled_;
    const auto thawed = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !frozen_; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&thawed), kLook)) return "";
  }
  const auto events = store_->EventsAfter(resource, *version, absl::Now() + kLook);
  if (!events.has_value()) {
    return absl::StrCat(R"({"type": "ERROR", "object": {"kind": "Status", "code": 410, )",
                        R"("reason": "Expired", "message": "too old resource version"}})", "\n");
  }
  {
    absl::MutexLock lock(&mutex_);
    if (frozen_) return "";
  }
  std::string lines;
  for (const FakeStore::Event& event : *events) {
    absl::StrAppend(&lines, R"({"type": ")", event.type, R"(", "object": )", event.text, "}\n");
    *version = event.version;
  }
  return lines;
}

bool FakeApiServer::Watch(const Request& request, httplib::Response* response) {
  uint64_t version = 0;
  if (!absl::SimpleAtoi(request.version, &version)) return false;
  const std::string resource(request.path.substr(request.path.rfind('/') + 1));
  uint64_t watches = 0;
  {
    absl::MutexLock lock(&mutex_);
    watches = ended_watches_;
  }
  response->set_chunked_content_provider(
      "application/json",
      [this, resource, watches, version](size_t, httplib::DataSink& sink) mutable {
        const auto lines = NextLines(resource, watches, &version);
        if (!lines.has_value()) {
          sink.done();
          return true;
        }
        // An event of another resource moves the version of this one on, too.
        return lines->empty() ? sink.is_writable() : sink.write(lines->data(), lines->size());
      });
  return true;
}

FakeApiServer::Answer FakeApiServer::AnswerTo(const Request& request) {
  std::function<Answer(const Request&)> handler;
  {
    absl::MutexLock lock(&mutex_);
    requests_.push_back(request);
    handler = handler_;
  }
  if (handler) return handler(request);
  {
    absl::MutexLock lock(&mutex_);
    if (request.authorization != absl::StrCat("Bearer ", token_)) {
      return Refusal(401, "Unauthorized");
    }
    if (request.watch && refused_ != 200) return Refusal(refused_, "no watch");
  }
  absl::string_view path = request.path;
  if (request.method == "GET" && absl::ConsumePrefix(&path, "/api/v1/nodes/")) {
    return {200, absl::StrCat(R"({"kind": "Node", "metadata": {"uid": "uid-of-)", path, "\"}}")};
  }
  if (path == "/api/v1/pods") {
    absl::MutexLock lock(&mutex_);
    return pods_ ? PartOfPods(request) : Refusal(403, "pods is forbidden");
  }
  if (!absl::ConsumePrefix(&path,
                           absl::StrCat("/apis/resource.k8s.io/", store_->group_version(), "/"))) {
    return {404, "404 page not found"};
  }
  return AnswerFromStore(request, std::string(path));
}

FakeApiServer::Answer FakeApiServer::AnswerFromStore(const Request& request,
                                                     const std::string& rest) {
  std::vector<std::string> parts = absl::StrSplit(rest, '/');
  std::string name_space;
  if (parts.size() > 2 && parts[0] == "namespaces") {
    name_space = parts[1];
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  const std::string& resource = parts[0];
  const bool claims = resource == "resourceclaims";
  if ((!claims && resource != "resourceslices") || parts.size() > 2) {
    return Refusal(404, "the server could not find the requested resource");
  }
  if (parts.size() == 2) {
    const auto text = request.method == "PUT" ? store_->Replace(resource, parts[1], request.body)
                                              : store_->Get(resource, name_space, parts[1]);
    if (text.has_value()) return {200, *text};
    if (request.method == "PUT") return Refusal(409, "it has changed");
    return {404, absl::StrCat(R"({"kind": "Status", "message": "not found", "details": {"name": ")",
                              parts[1], "\"}}")};
  }
  if (request.method == "POST") {
    const auto text = store_->Create(resource, request.body);
    return text.has_value() ? Answer{201, *text} : Refusal(409, "it exists");
  }
  if (request.method != "GET") return Refusal(405, "the server does not allow this method");
  if (request.watch) return {200, ""};
  size_t begin = 0, most = SIZE_MAX;
  (void)absl::SimpleAtoi(request.next, &begin);
  if (!absl::SimpleAtoi(request.limit, &most)) most = SIZE_MAX;
  {
    absl::MutexLock lock(&mutex_);
    most = std::min(most, part_);
  }
  const FakeStore::Part part = store_->List(resource, begin, most);
  return {200, absl::StrCat("{\"apiVersion\": \"resource.k8s.io/", store_->group_version(),
                            "\", \"kind\": \"", claims ? "ResourceClaimList" : "ResourceSliceList",
                            "\", \"metadata\": {\"resourceVersion\": \"", part.version,
                            "\", \"continue\": \"", part.next, "\"}, \"items\": [",
                            absl::StrJoin(part.objects, ","), "]}")};
}

FakeApiServer::Answer FakeApiServer::PartOfPods(const Request& request) const {
  size_t begin = 0;
  (void)absl::SimpleAtoi(request.next, &begin);
  begin = std::min(begin, pods_->size());
  const size_t end = std::min(begin + part_, pods_->size());
  const std::string next = end < pods_->size() ? absl::StrCat(end) : "";
  return {200, absl::StrCat(R"({"apiVersion": "v1", "kind": "PodList", "metadata": {"continue": ")",
                            next, R"("}, "items": [)",
                            absl::StrJoin(pods_->begin() + static_cast<std::ptrdiff_t>(begin),
                                          pods_->begin() + static_cast<std::ptrdiff_t>(end), ","),
                            "]}")};
}

}  // namespace gpumem::kubernetes
