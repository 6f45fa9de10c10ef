// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/testing/fake_api_server.h"

#include <httplib.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

FakeApiServer::FakeApiServer(const Certificate& certificate, int port) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that clients have closed
  const Text certificate_text(BIO_new_mem_buf(certificate.certificate.c_str(), -1));
  const Text key_text(BIO_new_mem_buf(certificate.key.c_str(), -1));
  const Cert cert(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  server_ = std::make_unique<httplib::SSLServer>(cert.get(), key.get());
  const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
    const Answer answer = AnswerTo({.path = request.path,
                                    .authorization = request.get_header_value("Authorization"),
                                    .selector = request.get_param_value("fieldSelector"),
                                    .next = request.get_param_value("continue"),
                                    .limit = request.get_param_value("limit"),
                                    .method = request.method,
                                    .body = request.body});
    response.status = answer.status;
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
  if (!thread_.joinable()) return;
  server_->stop();
  thread_.join();
}

void FakeApiServer::Handle(std::function<Answer(const Request&)> handler) {
  absl::MutexLock lock(&mutex_);
  handler_ = std::move(handler);
}
void FakeApiServer::SetClaims(std::vector<std::string> claims) {
  absl::MutexLock lock(&mutex_);
  claims_ = std::move(claims);
}
void FakeApiServer::SetSlices(std::vector<std::string> slices) {
  absl::MutexLock lock(&mutex_);
  slices_ = std::move(slices);
}
void FakeApiServer::SetPods(std::vector<std::string> pods) {
  absl::MutexLock lock(&mutex_);
  pods_ = std::move(pods);
}
void FakeApiServer::SetToken(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  token_ = token;
}
void FakeApiServer::SetVersion(const std::string& version) {
  absl::MutexLock lock(&mutex_);
  version_ = version;
}
void FakeApiServer::SetPart(size_t items) {
  absl::MutexLock lock(&mutex_);
  part_ = items;
}
std::vector<FakeApiServer::Request> FakeApiServer::Requests() const {
  absl::MutexLock lock(&mutex_);
  return requests_;
}

FakeApiServer::Answer FakeApiServer::AnswerTo(const Request& request) {
  std::function<Answer(const Request&)> handler;
  {
    absl::MutexLock lock(&mutex_);
    requests_.push_back(request);
    handler = handler_;
  }
  if (handler) return handler(request);
  absl::MutexLock lock(&mutex_);
  const auto error = [](int code, absl::string_view message) {
    return Answer{code, absl::StrCat("{\"kind\": \"Status\", \"message\": \"", message, "\"}")};
  };
  if (request.authorization != absl::StrCat("Bearer ", token_)) return error(401, "Unauthorized");
  if (request.method != "GET") return error(405, "the server does not allow this method");
  const std::string group = absl::StrCat("resource.k8s.io/", version_);
  if (request.path == absl::StrCat("/apis/", group, "/resourceclaims")) {
    return PartOf(claims_, group, "ResourceClaimList", request);
  }
  if (request.path == absl::StrCat("/apis/", group, "/resourceslices")) {
    return PartOf(slices_, group, "ResourceSliceList", request);
  }
  if (request.path == "/api/v1/pods") {
    return pods_ ? PartOf(*pods_, "v1", "PodList", request) : error(403, "pods is forbidden");
  }
  return error(404, "the server could not find the requested resource");
}

FakeApiServer::Answer FakeApiServer::PartOf(const std::vector<std::string>& items,
                                            const std::string& version, const char* kind,
                                            const Request& request) const {
  size_t begin = 0;
  (void)absl::SimpleAtoi(request.next, &begin);
  begin = std::min(begin, items.size());
  const size_t end = std::min(begin + part_, items.size());
  const std::string next = end < items.size() ? absl::StrCat(end) : "";
  return {200, absl::StrCat("{\"apiVersion\": \"", version, "\", \"kind\": \"", kind,
                            "\", \"metadata\": {\"continue\": \"", next, "\"}, \"items\": [",
                            absl::StrJoin(items.begin() + static_cast<std::ptrdiff_t>(begin),
                                          items.begin() + static_cast<std::ptrdiff_t>(end), ","),
                            "]}")};
}

}  // namespace gpumem::kubernetes
