package openvswitch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// database is the one that ovs-vswitchd follows.
const database = "Open_vSwitch"

// maxAnswer bounds what is read from a switch: a bridge with a thousand ports takes less than one MiB.
const maxAnswer = 64 << 20

// request and answer are messages of JSON-RPC 1.0, which OVSDB speaks without any framing (RFC 7047, section 4).
type request struct {
	Method string `json:"method"`
	Params []any  `json:"params"`
	ID     any    `json:"id"`
}

type answer struct {
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
	Result json.RawMessage   `json:"result"`
	Error  json.RawMessage   `json:"error"`
	ID     json.RawMessage   `json:"id"`
}

// result is that of one operation of a transaction (RFC 7047, section 4.1.3).
type result struct {
	Rows    []json.RawMessage `json:"rows"`
	Count   int               `json:"count"`
	Error   string            `json:"error"`
	Details string            `json:"details"`
}

// operation is one of a transaction, by the names of RFC 7047, section 5.2.
type operation map[string]any

// errGuard reports that a wait of the transaction did not hold: nothing was changed.
var errGuard = errors.New("the switch's database has changed meanwhile")

// transact carries out operations in one transaction, on a connection of its own. All of them take effect, or none.
func (s *Switch) transact(ctx context.Context, operations ...operation) ([]result, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	results, err := exchange(conn, operations)
	if ctx.Err() != nil && !errors.Is(err, errGuard) {
		return nil, errors.Join(fmt.Errorf("%s did not answer in time", s.cfg.Address), ctx.Err())
	}
	return results, err
}

func exchange(conn io.ReadWriter, operations []operation) ([]result, error) {
	params := []any{database}
	for _, o := range operations {
		params = append(params, o)
	}
	send := json.NewEncoder(conn)
	if err := send.Encode(request{"transact", params, 1}); err != nil {
		return nil, fmt.Errorf("tell the switch's database: %w", err)
	}
	receive := json.NewDecoder(io.LimitReader(conn, maxAnswer))
	for {
		var a answer
		if err := receive.Decode(&a); err != nil {
			return nil, fmt.Errorf("the switch's database did not answer: %w", err)
		}
		if a.Method == "echo" { // the server asks whether this end lives
			if err := send.Encode(map[string]any{"result": a.Params, "error": nil, "id": a.ID}); err != nil {
				return nil, err
			}
			continue
		}
		if a.Method != "" {
			continue
		}
		if len(a.Error) > 0 && string(a.Error) != "null" {
			return nil, fmt.Errorf("the switch's database refused: %s", a.Error)
		}
		return resultsOf(a.Result, len(operations))
	}
}

// resultsOf reads the results of all operations. After one that failed the others are null, and an error at the end is that of the commit.
func resultsOf(text json.RawMessage, want int) ([]result, error) {
	var results []*result
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("an answer of the switch's database can't be read: %w", err)
	}
	var all []result
	for _, r := range results {
		switch {
		case r == nil:
		case r.Error == "timed out": // the error of a wait
			return nil, errGuard
		case r.Error != "":
			return nil, fmt.Errorf("the switch's database refused: %s: %s", r.Error, r.Details)
		default:
			all = append(all, *r)
		}
	}
	if len(all) != want {
		return nil, fmt.Errorf("the switch's database answered %d of %d operations", len(all), want)
	}
	return all, nil
}

func (s *Switch) dial(ctx context.Context) (net.Conn, error) {
	kind, rest, _ := strings.Cut(s.cfg.Address, ":")
	var dialer net.Dialer
	switch kind {
	case "unix":
		return dialer.DialContext(ctx, "unix", rest)
	case "tcp":
		return dialer.DialContext(ctx, "tcp", rest)
	case "ssl":
		config, err := s.identity(rest)
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", rest)
	default:
		return nil, fmt.Errorf("address %q is of no known kind: they are unix, tcp and ssl", s.cfg.Address)
	}
}

// identity reads the files at each connection: they may have been renewed.
//
// Certificates of Open vSwitch's own authority (ovs-pki) carry no name of a host, so the switch is known by the authority alone, as other OVSDB
// clients know it. An authority that is for switches alone is needed for that.
func (s *Switch) identity(address string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(s.cfg.Certificate, s.cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("this server's identity for switches: %w", err)
	}
	text, err := os.ReadFile(s.cfg.CA)
	if err != nil {
		return nil, fmt.Errorf("the authority of switches: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("the authority of switches: %s has no certificate in PEM", s.cfg.CA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own},
		InsecureSkipVerify: true, // VerifyConnection verifies all but the name
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return fmt.Errorf("switch %s shows no certificate", address)
			}
			between := x509.NewCertPool()
			for _, c := range state.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			if err != nil {
				return fmt.Errorf("the certificate of switch %s is not of the authority in %s: %w", address, s.cfg.CA, err)
			}
			return nil
		},
	}, nil
}
