package apiserver

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"

	"github.com/nearmetal/nearmetal/internal/manifest"
)

// mergePatchType is the media type of JSON merge patches (RFC 7396, section 4).
const mergePatchType = "application/merge-patch+json"

// bodyFormat is the format a request's Content-Type names; JSON when it names none.
func bodyFormat(contentType string) (manifest.Format, error) {
	if contentType == "" {
		return manifest.JSON, nil
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err == nil {
		switch mediaType {
		case "application/json":
			return manifest.JSON, nil
		case "application/yaml", "application/x-yaml", "text/yaml": // RFC 9512 registers the first
			return manifest.YAML, nil
		}
	}
	return "", fail(codeMediaType, "Content-Type %q is not supported; send application/json or application/yaml", contentType)
}

// acceptsEvents tells whether the client asks for server-sent events.
func acceptsEvents(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			if mediaType, _, err := mime.ParseMediaType(strings.TrimSpace(part)); err == nil && mediaType == "text/event-stream" {
				return true
			}
		}
	}
	return false
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that does not take the answer is gone; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(v)
}
