package protocol

import "encoding/json"

// Message is a JSON-RPC message read only as far as routing needs. Its raw fields alias
// the bytes it was read from; a field that is absent is nil.
type Message struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage

	hasMethod bool
}

// ParseMessage reads one JSON-RPC 2.0 message. Keys are matched exactly, and the last of a
// repeated key counts. Errors: ErrSyntax, ErrTooDeep, ErrNotObject (a batch, for one).
func ParseMessage(data []byte) (*Message, error) {
	if err := Valid(data); err != nil {
		return nil, err
	}
	m := &Message{}
	version, malformed := false, false
	err := eachMember(data, func(f Member) {
		switch f.Key {
		case "jsonrpc":
			s, _ := Unquote(f.Value)
			version = s == "2.0"
		case "id":
			m.ID = f.Value
		case "method":
			m.Method, m.hasMethod = Unquote(f.Value)
			malformed = malformed || !m.hasMethod
		case "params":
			m.Params = f.Value
		case "result":
			m.Result = f.Value
		case "error":
			if string(f.Value) != "null" { // some write it beside a result
				m.Error = f.Value
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if !version || malformed {
		return nil, ErrSyntax
	}
	return m, nil
}

// IsCall reports whether the message is a request that expects an answer: it has a method
// and an id that is a string or a number.
func (m *Message) IsCall() bool { return m.hasMethod && validID(m.ID) }

// IsResponse reports whether the message answers a request.
func (m *Message) IsResponse() bool {
	return !m.hasMethod && validID(m.ID) && (m.Result != nil || m.Error != nil)
}

func validID(id json.RawMessage) bool {
	return len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// AppendResult appends a response that carries result to dst.
func AppendResult(dst []byte, id, result json.RawMessage) []byte {
	return appendResponse(dst, id, "result", result)
}

// AppendError appends a response that carries an error object to dst.
func AppendError(dst []byte, id, errorObject json.RawMessage) []byte {
	return appendResponse(dst, id, "error", errorObject)
}

func appendResponse(dst []byte, id json.RawMessage, key string, value json.RawMessage) []byte {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, `,"`...)
	dst = append(dst, key...)
	dst = append(dst, `":`...)
	dst = append(dst, value...)
	return append(dst, '}')
}

// NewCall returns a call as ParseMessage would have read it.
func NewCall(id json.RawMessage, method string, params json.RawMessage) *Message {
	return &Message{ID: id, Method: method, Params: params, hasMethod: true}
}
