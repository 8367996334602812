package redfish

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"strings"
)

// certificateError is the error of a BMC that shows another certificate than the pinned one.
type certificateError struct{ want, got string }

func (e *certificateError) Error() string {
	return fmt.Sprintf("the BMC's certificate has SHA-256 %s, but %s is pinned; if the BMC has a new certificate, verify it on the BMC and pin it", e.got, e.want)
}

// tlsConfig verifies certificates by the system's CAs, or against the pin if there is one: BMCs come with certificates of their own making.
func tlsConfig(pin string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if pin == "" {
		return config, nil
	}
	want := strings.ToLower(strings.ReplaceAll(pin, ":", ""))
	if raw, err := hex.DecodeString(want); err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("%q is not the SHA-256 of a certificate; print it with: openssl x509 -fingerprint -sha256", pin)
	}
	// The chain is not looked at because the very certificate is; it is compared in VerifyConnection, which runs for resumed connections too.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return &certificateError{want: want, got: "(none)"}
		}
		got := sha256.Sum256(state.PeerCertificates[0].Raw)
		if hex.EncodeToString(got[:]) != want {
			return &certificateError{want: want, got: hex.EncodeToString(got[:])}
		}
		return nil
	}
	return config, nil
}
