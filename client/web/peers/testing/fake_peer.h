// SPDX-License-Identifier: Apache-2.0
// Another node, which answers as the test says.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"

namespace gpumem::web {

// A certificate for localhost and its key, signed by itself.
struct FakeCertificate {
  explicit FakeCertificate(const std::string& name) {
    key.reset(EVP_EC_gen("P-256"));
    certificate.reset(X509_new());
    X509* const x509 = certificate.get();
    X509_set_version(x509, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 24 * 3600);
    X509_set_pubkey(x509, key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x509, X509_get_subject_name(x509));
    for (const auto& [nid, value] :
         {std::pair(NID_basic_constraints, std::string("critical,CA:TRUE")),
          std::pair(NID_subject_alt_name, absl::StrCat("DNS:", name))}) {
      X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
      X509_add_ext(x509, extension, -1);
      X509_EXTENSION_free(extension);
    }
    X509_sign(x509, key.get(), EVP_sha256());
  }

  struct FreeKey {
    void operator()(EVP_PKEY* object) const { EVP_PKEY_free(object); }
  };
  struct FreeCertificate {
    void operator()(X509* object) const { X509_free(object); }
  };
  std::unique_ptr<EVP_PKEY, FreeKey> key;
  std::unique_ptr<X509, FreeCertificate> certificate;
};

// Serves one connection after the other: sends `answer` once a request's head has come, or at once
// if `hasty`, and `more` again and again until the peer closes.
class FakePeer {
 public:
  struct Script {
    std::string answer;
    std::string more;
    bool hasty = false;
    const FakeCertificate* certificate = nullptr;  // with TLS
  };

  // `listener`: a listening socket; -1: a port of 127.0.0.1.
  explicit FakePeer(Script script, int listener = -1) : script_(std::move(script)) {
    listener_ = UniqueFd(listener);
    if (listener < 0) {
      listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address = {.sin_family = AF_INET};
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t length = sizeof(address);
      auto* const any = reinterpret_cast<sockaddr*>(&address);
      EXPECT_EQ(bind(listener_.get(), any, length), 0);
      EXPECT_EQ(listen(listener_.get(), 16), 0);
      getsockname(listener_.get(), any, &length);
      port_ = ntohs(address.sin_port);
    }
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakePeer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  FakePeer(const FakePeer&) = delete;
  FakePeer& operator=(const FakePeer&) = delete;

  std::string Url() const { return absl::StrCat("http://127.0.0.1:", port_); }
  int port() const { return port_; }
  void SetAnswer(std::string answer) {
    absl::MutexLock lock(&mutex_);
    script_.answer = std::move(answer);
  }
  // Returns the head of the last request.
  std::string Heard() const {
    absl::MutexLock lock(&mutex_);
    return heard_;
  }

 private:
  void Serve() {
    while (true) {
      const UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) return;
      Script script;
      {
        absl::MutexLock lock(&mutex_);
        script = script_;
      }
      if (script.certificate != nullptr) {
        ServeTls(fd.get(), script);
      } else {
        const auto read = [&](char* data, int size) {
          return static_cast<int>(recv(fd.get(), data, static_cast<size_t>(size), 0));
        };
        const auto write = [&](const std::string& data) {
          return send(fd.get(), data.data(), data.size(), MSG_NOSIGNAL) > 0;
        };
        Answer(script, read, write);
      }
    }
  }

  void ServeTls(int fd, const Script& script) {
    SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context, script.certificate->certificate.get());
    SSL_CTX_use_PrivateKey(context, script.certificate->key.get());
    SSL* const ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1) {
      Answer(
          script, [&](char* data, int size) { return SSL_read(ssl, data, size); },
          [&](const std::string& data) {
            return SSL_write(ssl, data.data(), static_cast<int>(data.size())) > 0;
          });
      SSL_shutdown(ssl);
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
  }

  template <typename Read, typename Write>
  void Answer(const Script& script, const Read& read, const Write& write) {
    std::string head;
    char buffer[4096];
    while (!script.hasty && head.find("\r\n\r\n") == std::string::npos) {
      const int got = read(buffer, sizeof(buffer));
      if (got <= 0) return;
      head.append(buffer, static_cast<size_t>(got));
    }
    {
      absl::MutexLock lock(&mutex_);
      heard_ = head;
    }
    if (!script.answer.empty()) write(script.answer);
    if (script.more.empty()) return;
    while (write(script.more)) continue;
  }

  UniqueFd listener_;
  int port_ = 0;
  mutable absl::Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  std::string heard_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gpumem::web
