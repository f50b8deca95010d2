"""What a client is told when something is wrong: status, and a body in OpenAI's shape."""
from __future__ import annotations

from vivace import errors


class ApiError(Exception):
    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None, kind: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers or {}
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")

    def body(self) -> dict:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, reason: str) -> ApiError:
    """A field that this server knows and cannot serve."""
    return bad(f"{param}: {reason}", param, "unsupported_parameter")


def busy(message: str, retry_ms: int, code: str = "rate_limit_exceeded") -> ApiError:
    return ApiError(429, message, code=code, kind="rate_limit_error", headers={"retry-after-ms": str(retry_ms), "retry-after": str(-(-retry_ms // 1000))})


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down; ask again, another one may answer", code="shutting_down", headers={"x-should-retry": "true", "connection": "close"})


def of_engine(e: errors.Error, *, began: bool) -> ApiError:
    """What an error of the engine is to a client. `began`: the engine had begun to answer, so that trying again costs as much again."""
    if isinstance(e, (errors.InvalidArgumentError, errors.InvalidShapeError, errors.UnsupportedError, errors.LimitExceededError)):
        status, code = 400, "invalid_value"
    elif isinstance(e, errors.ClosedError):
        status, code = 503, "shutting_down"
    else:
        status, code = 500, e.code or "internal"
    return ApiError(status, str(e), code=code, headers={"x-should-retry": "false"} if began or status == 500 else None)
