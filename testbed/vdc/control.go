package vdc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Order is what one asks a running data centre from another process.
type Order struct {
	// Do is one of power-loss, press, hang, unhang, unplug, plug, loss, bmc, power, oem.
	Do      string  `json:"do"`
	Machine string  `json:"machine,omitempty"`
	Network Network `json:"network,omitempty"`
	// Share is of loss.
	Share float64 `json:"share,omitempty"`
	// Fault is of bmc.
	Fault BMCFault `json:"fault"`
	// OEMStrings are of oem.
	OEMStrings []string `json:"oem_strings,omitempty"`
}

// obey carries an order out and tells what there is to tell.
func (dc *DataCentre) obey(o Order) (string, error) {
	switch o.Do {
	case "power-loss":
		return "", dc.CutPower(o.Machine)
	case "press":
		return "", dc.PressPower(o.Machine)
	case "hang", "unhang":
		return "", dc.HangFirmware(o.Machine, o.Do == "hang")
	case "unplug", "plug":
		return "", dc.SetNIC(o.Machine, orElse(o.Network, Provisioning), o.Do == "plug")
	case "loss":
		return "", dc.SetLoss(o.Share)
	case "bmc":
		return "", dc.SetBMCFault(o.Machine, o.Fault)
	case "power":
		state, err := dc.Power(o.Machine)
		return string(state), err
	case "oem":
		return "", dc.SetOEMStrings(o.Machine, o.OEMStrings)
	default:
		return "", fmt.Errorf("unknown order %q", o.Do)
	}
}

func controlSocket(dir string) string { return filepath.Join(dir, "control.sock") }

// serveControl takes orders of other processes at a socket in the folder.
func (dc *DataCentre) serveControl(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", controlSocket(dc.dir))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /order", func(w http.ResponseWriter, r *http.Request) {
		var o Order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := dc.obey(o)
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		fmt.Fprint(w, answer)
	})
	mux.HandleFunc("POST /down", func(http.ResponseWriter, *http.Request) {
		dc.downOnce.Do(func() { close(dc.down) })
		// Not within the request, which Close waits for.
		go func() { _ = dc.Close() }()
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	dc.run(func() { _ = server.Serve(listener) })
	context.AfterFunc(ctx, func() { server.Close() })
	return nil
}

// Down is closed once another process asked for the end, by TakeDown, and the data centre is closing.
func (dc *DataCentre) Down() <-chan struct{} { return dc.down }

// Give sends an order to the data centre of that name, which another process has started.
func Give(ctx context.Context, name string, o Order) (string, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	return post(ctx, name, "/order", body)
}

func post(ctx context.Context, name, path string, body []byte) (string, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", controlSocket(Dir(name)))
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://vdc"+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("the virtual data centre %q does not answer (is it up?): %w", name, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// TakeDown asks for the end of the data centre of that name and waits until all of it is gone. Without a starter that listens, it ends what
// is left and removes the files. One that is not there is no error.
func TakeDown(ctx context.Context, name string) error {
	dir := Dir(name)
	_, _ = post(ctx, name, "/down", nil)
	var lock *os.File
	err := until(ctx, nil, func() (err error) {
		lock, err = tryLock(dir)
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for the end of the virtual data centre %q: %w", name, err)
	}
	return release(dir, lock)
}

// Inventory is what machines.json of the data centre of that name says.
func Inventory(name string) ([]Machine, error) {
	text, err := os.ReadFile(filepath.Join(Dir(name), "machines.json"))
	if err != nil {
		return nil, fmt.Errorf("the virtual data centre %q is not up: %w", name, err)
	}
	var machines []Machine
	return machines, json.Unmarshal(text, &machines)
}

// Names are of the data centres that run. What is left of others is removed.
func Names() ([]string, error) {
	entries, err := os.ReadDir(BaseDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		lock, err := tryLock(Dir(entry.Name()))
		if errors.Is(err, ErrRunning) {
			names = append(names, entry.Name())
		} else if err == nil {
			err = release(Dir(entry.Name()), lock) // what one left that was killed together with its keeper
		}
		if err != nil && !errors.Is(err, ErrRunning) {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}
