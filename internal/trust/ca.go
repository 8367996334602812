package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// siteCA is one of a site's CAs.
type siteCA struct {
	cert *x509.Certificate
	// cross certifies the same key by the CA before, for those who know that one's pin only; nil for the first.
	cross *x509.Certificate
	key   *ecdsa.PrivateKey
}

func caPath(dir string) string { return filepath.Join(dir, "tls", "ca.pem") }

func pinOf(cert *x509.Certificate) Pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// loadCAs reads the CAs, the newest first, or makes the first one on the first start. All are in one file, which is always whole: of each its
// certificate, the one that the CA before has issued for its key, and the key.
func loadCAs(dir string, now time.Time) ([]siteCA, error) {
	text, err := readPrivate(caPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		first, err := newCA(now, nil)
		if err != nil {
			return nil, err
		}
		return []siteCA{first}, writeCAs(dir, []siteCA{first})
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	all, err := parseCAs(text)
	if err != nil {
		return nil, fmt.Errorf("the CA in %s is damaged: %w; restore DIR/tls from a backup", caPath(dir), err)
	}
	if end := all[0].cert.NotAfter; now.After(end) {
		return nil, fmt.Errorf("the CA %s expired on %s; run: nearmetal site rotate", caPath(dir), end.Format(time.DateOnly))
	}
	return all, nil
}

func parseCAs(text []byte) ([]siteCA, error) {
	var all []siteCA
	var next siteCA
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" {
			cert, err := x509.ParseCertificate(block.Bytes)
			switch {
			case err != nil:
				return nil, err
			case !cert.IsCA:
				return nil, errors.New("it has a certificate that is not of a CA")
			case next.cert == nil:
				next.cert = cert
			default:
				next.cross = cert
			}
			continue
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		key, ok := parsed.(*ecdsa.PrivateKey)
		if !ok || next.cert == nil || !key.PublicKey.Equal(next.cert.PublicKey) {
			return nil, errors.New("a key is not that of its certificate")
		}
		next.key = key
		all, next = append(all, next), siteCA{}
	}
	if len(all) == 0 || next.cert != nil || len(bytes.TrimSpace(text)) > 0 {
		return nil, errors.New("it ends in the middle")
	}
	return all, nil
}

func writeCAs(dir string, all []siteCA) error {
	var text bytes.Buffer
	for _, ca := range all {
		key, err := x509.MarshalPKCS8PrivateKey(ca.key)
		if err != nil {
			return err
		}
		blocks := []*pem.Block{{Type: "CERTIFICATE", Bytes: ca.cert.Raw}}
		if ca.cross != nil {
			blocks = append(blocks, &pem.Block{Type: "CERTIFICATE", Bytes: ca.cross.Raw})
		}
		for _, block := range append(blocks, &pem.Block{Type: "PRIVATE KEY", Bytes: key}) {
			if err := pem.Encode(&text, block); err != nil {
				return err
			}
		}
	}
	if err := writePrivate(caPath(dir), text.Bytes()); err != nil {
		return fmt.Errorf("write the CA: %w", err)
	}
	return nil
}

// newCA makes a CA, certified by the one before as well, if there is one.
func newCA(now time.Time, before *siteCA) (siteCA, error) {
	key, err := NewKey()
	if err != nil {
		return siteCA{}, err
	}
	// The serial number tells the names of two CAs apart.
	number := serial()
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "Nearmetal site CA", SerialNumber: number.Text(16)},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	ca := siteCA{key: key}
	if ca.cert, err = sign(template, template, &key.PublicKey, key); err != nil {
		return siteCA{}, fmt.Errorf("make the CA: %w", err)
	}
	if before == nil {
		return ca, nil
	}
	template.SerialNumber = serial()
	if ca.cross, err = sign(template, before.cert, &key.PublicKey, before.key); err != nil {
		return siteCA{}, fmt.Errorf("certify the new CA by the former: %w", err)
	}
	return ca, nil
}

// sign issues a certificate for a key.
func sign(template, parent *x509.Certificate, key *ecdsa.PublicKey, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// RotateCA makes another CA in dir, which issues all certificates from then on. What the former ones have issued stays good, and clients that know
// their pins are still let in, until RetireCAs. No server may use dir meanwhile.
func RotateCA(dir string, now time.Time) error {
	text, err := readPrivate(caPath(dir))
	if err != nil {
		return fmt.Errorf("read the CA: %w", err)
	}
	all, err := parseCAs(text)
	if err != nil {
		return fmt.Errorf("the CA in %s is damaged: %w; restore DIR/tls from a backup", caPath(dir), err)
	}
	next, err := newCA(now, &all[0])
	if err != nil {
		return err
	}
	return writeCAs(dir, append([]siteCA{next}, all...))
}

// RetireCAs drops all CAs but the newest, and returns how many. Who knows the pin of a former one only can't connect any more, and certificates
// that it has issued are void. No server may use dir meanwhile.
func RetireCAs(dir string, now time.Time) (int, error) {
	all, err := loadCAs(dir, now)
	if err != nil {
		return 0, err
	}
	all[0].cross = nil
	return len(all) - 1, writeCAs(dir, all[:1])
}

// CAInfo is a CA as people see it.
type CAInfo struct {
	Pin      Pin
	MadeAt   time.Time
	ExpireAt time.Time
}

// ListCAs lists the CAs in dir, the newest first.
func ListCAs(dir string) ([]CAInfo, error) {
	text, err := readPrivate(caPath(dir))
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	all, err := parseCAs(text)
	if err != nil {
		return nil, fmt.Errorf("the CA in %s is damaged: %w", caPath(dir), err)
	}
	infos := make([]CAInfo, len(all))
	for i, ca := range all {
		infos[i] = CAInfo{Pin: pinOf(ca.cert), MadeAt: ca.cert.NotBefore.Add(backdate), ExpireAt: ca.cert.NotAfter}
	}
	return infos, nil
}

// writePublicCAs writes the certificates of the CAs, for programs that take a file of them (curl --cacert).
func writePublicCAs(dir string, all []siteCA) error {
	var text bytes.Buffer
	for _, ca := range all {
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, "tls", "ca.crt")
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, text.Bytes()) {
		return nil
	}
	if err := writePrivate(path, text.Bytes()); err != nil {
		return fmt.Errorf("write the certificates of the CA: %w", err)
	}
	return nil
}
