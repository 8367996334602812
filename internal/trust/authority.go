package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
)

// Life times. The CA outlives what depends on its pin; the server's certificate is renewed when a third of its life is left.
const (
	caLife     = 20 * 365 * 24 * time.Hour
	serverLife = 90 * 24 * time.Hour
	renewLeft  = serverLife / 3
	// backdate allows for clocks that are behind, or were set back: by hours, or by years where a machine lost its time. Who is trusted
	// is said by the CA's key, which clients pin, not by when that was made.
	backdate = 10 * 365 * 24 * time.Hour
)

// Authority is a site's CA with the server's certificate and the tokens it accepts.
type Authority struct {
	Tokens *Tokens

	dir   string
	hosts []string
	now   func() time.Time
	// cas are the site's CAs, the newest first.
	cas  []siteCA
	site string

	mu     sync.Mutex
	server *tls.Certificate
}

// Open loads the CA, the server's certificate and the tokens in the state directory, and makes what is missing. hosts are
// the host names and addresses the server listens on; localhost, the loopback addresses and the host's name are added, and
// for an unspecified address ("", "0.0.0.0", "::") all addresses of the host.
func Open(dir string, hosts ...string) (*Authority, error) {
	return open(dir, time.Now, hosts)
}

func open(dir string, now func() time.Time, hosts []string) (*Authority, error) {
	a := &Authority{dir: dir, now: now, hosts: withLocal(hosts)}
	var err error
	if a.cas, err = loadCAs(dir, now()); err != nil {
		return nil, err
	}
	if _, err := a.certificate(); err != nil {
		return nil, err
	}
	if err := writePublicCAs(dir, a.cas); err != nil {
		return nil, err
	}
	if a.site, err = a.loadSite(); err != nil {
		return nil, err
	}
	a.Tokens, err = openTokens(dir, a.pins(), filepath.Join(dir, config.TokenName))
	return a, err
}

// Pin identifies the CA in use.
func (a *Authority) Pin() Pin { return pinOf(a.cas[0].cert) }

// pins are those of all CAs, the newest first.
func (a *Authority) pins() []Pin {
	pins := make([]Pin, len(a.cas))
	for i, ca := range a.cas {
		pins[i] = pinOf(ca.cert)
	}
	return pins
}

// pool has all CAs: what a former one has issued is good until that is retired.
func (a *Authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, ca := range a.cas {
		pool.AddCert(ca.cert)
	}
	return pool
}

// Site identifies the site: the pin of its first CA. It stays when the CA is replaced.
func (a *Authority) Site() string { return a.site }

// ServerTLS is the configuration of the server's listener. The certificate is renewed as connections come in.
func (a *Authority) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.certificate()
		},
		// Asked for by the name of the CA, so that browsers offer nothing else; who sends one is told by Identify, for each request.
		ClientAuth: tls.RequestClientCert, ClientCAs: a.pool(),
	}
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, "tls", name) }

// loadSite reads who the site is, or writes it on the first start.
func (a *Authority) loadSite() (string, error) {
	data, err := readPrivate(a.path("site"))
	if err == nil {
		return strings.TrimSpace(string(data)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the site's name: %w", err)
	}
	site := a.Pin().String()
	return site, writePrivate(a.path("site"), []byte(site+"\n"))
}

// certificate is the server's certificate, renewed when it is about to expire, was issued by another CA or lacks a host.
func (a *Authority) certificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server != nil && a.good(a.server.Leaf) {
		return a.server, nil
	}
	if a.server == nil {
		cert, key, err := readPair(a.path("server.crt"), a.path("server.key"))
		if err == nil && a.good(cert) {
			a.server = a.chain(cert, key)
			return a.server, nil
		}
		// What can't be read is made anew: nothing depends on this certificate but this server. A secret that others may
		// read is replaced for the same reason.
	}
	cert, key, err := a.issueServer()
	if err != nil {
		return nil, err
	}
	if err := writePair(a.path("server.crt"), a.path("server.key"), cert, key); err != nil {
		if a.server == nil || a.now().After(a.server.Leaf.NotAfter) {
			return nil, fmt.Errorf("write the server's certificate: %w", err)
		}
		// A full disk must not turn clients away: the new certificate serves from memory.
	}
	a.server = a.chain(cert, key)
	return a.server, nil
}

// good tells whether a server certificate can go on being used.
func (a *Authority) good(cert *x509.Certificate) bool {
	if cert.CheckSignatureFrom(a.cas[0].cert) != nil || a.now().Before(cert.NotBefore) || cert.NotAfter.Sub(a.now()) < renewLeft {
		return false
	}
	for _, host := range a.hosts {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

// issueServer makes a server certificate with a fresh key.
func (a *Authority) issueServer() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the server's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Nearmetal server"},
		NotBefore: a.now().Add(-backdate), NotAfter: a.now().Add(serverLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range a.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	cert, err := sign(template, a.cas[0].cert, &key.PublicKey, a.cas[0].key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the server's certificate: %w", err)
	}
	return cert, key, nil
}

// chain is what the server sends: its certificate and the CAs', which clients know by the pin of one. Who knows a former CA only comes by way of
// what that has issued for the next.
func (a *Authority) chain(cert *x509.Certificate, key *ecdsa.PrivateKey) *tls.Certificate {
	chain := [][]byte{cert.Raw}
	for _, ca := range a.cas {
		chain = append(chain, ca.cert.Raw)
		if ca.cross != nil {
			chain = append(chain, ca.cross.Raw)
		}
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: cert}
}

// serial is a random serial number (RFC 5280, section 4.1.2.2: positive, at most 20 octets).
func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)
	return new(big.Int).SetBytes(b)
}

// withLocal adds to hosts the names by which the host reaches itself.
func withLocal(hosts []string) []string {
	all := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil && name != "" {
		all = append(all, name)
	}
	for _, host := range hosts {
		ip := net.ParseIP(host)
		if host != "" && (ip == nil || !ip.IsUnspecified()) {
			all = append(all, host)
			continue
		}
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			continue // the names above still work
		}
		for _, addr := range addrs {
			if prefix, ok := addr.(*net.IPNet); ok && !prefix.IP.IsLinkLocalUnicast() {
				all = append(all, prefix.IP.String())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// readPair reads a certificate and its key.
func readPair(certPath, keyPath string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	keyPEM, err := readPrivate(keyPath)
	if err != nil {
		return nil, nil, err
	}
	certPEM, err := os.ReadFile(certPath)
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s: %w", certPath, keyPath, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not an ECDSA key", keyPath)
	}
	return pair.Leaf, key, nil
}

// writePair writes a certificate and then its key.
func writePair(certPath, keyPath string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePrivate(certPath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})); err != nil {
		return err
	}
	return writePrivate(keyPath, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
